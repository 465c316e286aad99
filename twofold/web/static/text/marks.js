// @ts-check
/** Tokens in colours on rendered Markdown: CSS highlights over parts of its text nodes, which stay as they are. */

import { plain, shownNodes, shownParts } from "./md.js";
import { piecesOf, startsOf } from "./tokens.js";

/** Whether this browser has them. */
export const CAN_MARK = "highlights" in CSS && "caretPositionFromPoint" in document;

/** The highlight of a class; it is shared by all answers. @param {string} name */
function highlight(name) {
  const known = CSS.highlights.get(`t-${name}`);
  if (known) return known;
  const made = new Highlight();
  made.priority = ["step", "on"].indexOf(name) + 1;
  CSS.highlights.set(`t-${name}`, made);
  return made;
}

/**
 * The tokens of an answer in the elements that show it. Null if these show another text.
 * @param {import("../chat/tree.js").Message} message
 * @param {Element} root  of its text
 * @param {Element} thinking
 * @returns {import("./tokens.js").Painter | null}
 */
export function marks(message, root, thinking) {
  const { answer, thinking: thought } = startsOf(message), { content, reasoning = "" } = message;
  let last = 0, plainAt = 0;
  const starts = answer.map((at) => {
    if (at < 0) return -1;
    plainAt += plain(content.slice(last, at)).length;
    last = at;
    return plainAt;
  });
  /** @type {(starts: number[], parts: [number, number][], nodes: Text[]) => StaticRange[][] | null} */
  const ranges = (starts, parts, nodes) => {
    const pieces = piecesOf(starts, parts, nodes.map((node) => node.length));
    const found = /** @type {StaticRange[][]} */ (starts.map(() => []));
    for (const { token, node, from, to } of pieces ?? []) {
      const [startContainer, endContainer] = [nodes[node], nodes[node]];
      found[token].push(new StaticRange({ startContainer, startOffset: from, endContainer, endOffset: to }));
    }
    return pieces && found;
  };
  const inAnswer = ranges(starts, shownParts(content), shownNodes(root));
  const inThought = ranges(thought, [[0, reasoning.length]], shownNodes(thinking));
  if (!inAnswer || !inThought) return null;
  const all = inAnswer.map((each, index) => [...inThought[index], ...each]);
  const painted = /** @type {Map<string, StaticRange[]>} */ (new Map());
  /** @param {string} name @param {StaticRange[]} ranges */
  const set = (name, ranges) => {
    painted.get(name)?.forEach((range) => highlight(name).delete(range));
    ranges.forEach((range) => highlight(name).add(range));
    painted.set(name, ranges);
  };
  return {
    paint: (classes) => {
      for (const name of "abcdesg") set(name, all.filter((_, index) => classes[index] === name).flat());
    },
    mark: (indices, name) => set(name, indices.flatMap((index) => all[index])),
    place: (index) => {
      const near = all.slice(index).find((each) => each.length > 0) ?? all.findLast((each) => each.length > 0);
      const range = document.createRange();
      if (!near) return null;
      range.setStart(near[0].startContainer, near[0].startOffset);
      range.setEnd(near[0].endContainer, near[0].endOffset);
      return range;
    },
    at: ({ clientX, clientY }) => {
      const spot = document.caretPositionFromPoint(clientX, clientY);
      return all.findIndex((ranges) => ranges.some((range) => spot && holds(range, spot, clientX, clientY)));
    },
    end: () => [...painted.keys()].forEach((name) => set(name, [])),
  };
}

/** Whether a point is on a range; a caret can be at either side of the letter under it. @param {StaticRange} part @param {CaretPosition} spot @param {number} x @param {number} y */
function holds(part, { offsetNode, offset }, x, y) {
  if (part.startContainer !== offsetNode || offset < part.startOffset || offset > part.endOffset) return false;
  const range = document.createRange();
  range.setStart(part.startContainer, part.startOffset);
  range.setEnd(part.endContainer, part.endOffset);
  return [...range.getClientRects()].some((r) => x >= r.left && x < r.right && y >= r.top - 4 && y <= r.bottom + 4);
}
