"""Topic: matches if the words of the routing key match the pattern of the binding.

Words are separated by dots; in a pattern `*` is exactly one word and `#` zero or more. Patterns are stored in a trie,
one node per word, so the cost of a match is the number of words times the nodes that are active at each, independent
of the number of bindings.

A match walks all matching paths at once, word by word. A `#` that was reached matches every longer prefix too: it is
opened once per match and stays open, so that no two paths meet in a node and patterns such as `#.#.#.a` cost no more
than their nodes.

Unusual keys are treated as in RabbitMQ (observed on 3.10.8): the empty key has no words, so `#` matches it and `*` does
not; every other key is split at each dot, and empty words count (`.` has two, which `*.*` matches). Wildcards are
whole words: `a#` is an ordinary word, and so are `*` and `#` in the key of a message.

Compiled when the package is built: see topic.pxd.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from warrenmq.core.routing.matcher import Traits, add_destination, drop_destination


class TopicNode:
    """One word of one or more patterns with a common prefix."""

    __slots__ = ("destinations", "opened_in", "rest", "star", "words")

    def __init__(self) -> None:
        self.words: dict[str, TopicNode] = {}
        self.star: TopicNode | None = None
        self.rest: TopicNode | None = None
        self.destinations: dict[Hashable, int] = {}
        # Of a `#` node: the number of the match that opened it last.
        self.opened_in: int = 0

    def child(self, word: str) -> TopicNode | None:
        """Return the node of the pattern's next word."""
        if word == "*":
            return self.star
        if word == "#":
            return self.rest
        return self.words.get(word)

    def attach(self, word: str, node: TopicNode) -> None:
        """Add a child node."""
        if word == "*":
            self.star = node
        elif word == "#":
            self.rest = node
        else:
            self.words[word] = node

    def detach(self, word: str) -> None:
        """Remove the child node of this word."""
        if word == "*":
            self.star = None
        elif word == "#":
            self.rest = None
        else:
            del self.words[word]

    def is_bare(self) -> bool:
        """Return True if no pattern ends at or continues from this node."""
        return not self.destinations and not self.words and self.star is None and self.rest is None


class TopicMatcher:
    """Destinations by pattern; in the order of the trie, which is the same for the same bindings."""

    __slots__ = ("_match_number", "root", "visited")

    uses_message = False
    uses_all_keys = True

    def __init__(self) -> None:
        self.root: TopicNode = TopicNode()
        self._match_number: int = 0
        # Nodes visited by all matches so far: tests measure the cost of matching by it, and walk from the root.
        self.visited: int = 0

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Route messages whose key matches the pattern to the destination."""
        node = self.root
        for word in split_words(key):
            child = node.child(word)
            if child is None:
                child = TopicNode()
                node.attach(word, child)
            node = child
        add_destination(node.destinations, destination)

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind, and remove nodes that are no longer needed."""
        words = split_words(key)
        path = [self.root]
        for word in words:
            child = path[-1].child(word)
            if child is None:
                raise KeyError(key)
            path.append(child)
        drop_destination(path[-1].destinations, destination)
        while words and path.pop().is_bare():
            path[-1].detach(words.pop())

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add the destinations of every pattern that matches the key."""
        self._match_number += 1
        here: list[TopicNode] = []
        opened: list[TopicNode] = []
        self._reach(self.root, here, opened, found)
        for word in split_words(key):
            ahead: list[TopicNode] = []
            # Nodes opened by this word start with the next one.
            opened_before = opened[:]
            self.visited += len(here) + len(opened_before)
            for node in here:
                self._step(node, word, ahead, opened, found)
            for node in opened_before:
                self._step(node, word, ahead, opened, found)
            here = ahead
        for node in here:
            for destination in node.destinations:
                found[destination] = None

    def is_empty(self) -> bool:
        """Return True if no binding is left."""
        return self.root.is_bare()

    def _step(
        self,
        node: TopicNode,
        word: str,
        ahead: list[TopicNode],
        opened: list[TopicNode],
        found: dict[Hashable, None],
    ) -> None:
        """Enter the nodes that follow this one by the key's next word."""
        child = node.words.get(word)
        if child is not None:
            self._reach(child, ahead, opened, found)
        if node.star is not None:
            self._reach(node.star, ahead, opened, found)

    def _reach(
        self, node: TopicNode, ahead: list[TopicNode], opened: list[TopicNode], found: dict[Hashable, None]
    ) -> None:
        """Enter a node, and open the `#` nodes below it."""
        ahead.append(node)
        rest = node.rest
        while rest is not None and rest.opened_in != self._match_number:
            rest.opened_in = self._match_number
            # A pattern that ends in `#` matches already, whatever words follow.
            for destination in rest.destinations:
                found[destination] = None
            if rest.words or rest.star is not None:
                opened.append(rest)
            rest = rest.rest


def find_partial_wildcard(key: str) -> str | None:
    """Return the first word that contains a wildcard character but is not a wildcard; None if there is none."""
    for word in split_words(key):
        if len(word) > 1 and ("*" in word or "#" in word):
            return word
    return None


def split_words(key: str) -> list[str]:
    """Return the words between the dots; the empty key has none."""
    return key.split(".") if key else []
