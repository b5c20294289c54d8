// Builds elements. Text goes in as text only: whatever a name or a header holds, it is never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (`class`, `href`, ...; a function is a listener: `onclick`) and children (nodes or text). */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same, for drawings. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Put these, and nothing else, into the parent. */
export function show(parent, ...children) {
  parent.replaceChildren(...children.flat().filter(isThere).map(asNode));
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (name === "href") {
      element.setAttribute(name, safeLink(value));
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (isThere(value)) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.flat().filter(isThere).map(asNode));
  return element;
}

// Links lead to our own pages: what begins with a scheme of its own (javascript:) leads nowhere.
function safeLink(link) {
  if (link.startsWith("#")) return link;
  const url = new URL(link, location.href);
  return url.origin === location.origin ? url.pathname + url.search + url.hash : "#";
}

const isThere = (value) => value !== null && value !== undefined && value !== false;
const asNode = (value) => (value instanceof Node ? value : document.createTextNode(String(value)));
