// Builds elements. Text is always inserted as text, never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (`class`, `href`, ...; a function is a listener: `onclick`) and children (nodes or text). */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same, for drawings. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace the children of the parent. */
export function show(parent, ...children) {
  parent.replaceChildren(...children.flat().filter(isPresent).map(asNode));
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (name === "href") {
      element.setAttribute(name, safeLink(value));
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (isPresent(value)) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.flat().filter(isPresent).map(asNode));
  return element;
}

// Only links to our own pages; other schemes, such as javascript:, become "#".
function safeLink(link) {
  if (link.startsWith("#")) return link;
  const url = new URL(link, location.href);
  return url.origin === location.origin ? url.pathname + url.search + url.hash : "#";
}

const isPresent = (value) => value !== null && value !== undefined && value !== false;
const asNode = (value) => (value instanceof Node ? value : document.createTextNode(String(value)));
