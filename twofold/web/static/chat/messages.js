// @ts-check
/** Messages as elements. Each is made once and changed as its message changes; old ones are drawn when they are seen. */

import { fill, h, retext } from "../core/dom.js";
import { seconds, tokens } from "../core/form.js";
import { button, choice, copyButton, faultBox, strip } from "../core/parts.js";
import { onEnd, signal } from "../core/signal.js";
import { isJson, jsonView } from "../text/json.js";
import { createMarkdown, showMarkdown } from "../text/md.js";
import { CAN_MARK, marks } from "../text/marks.js";
import { choosable, classesOf, COLOUR_NOTES, COLOURS, scale, spans } from "../text/tokens.js";
import { receipt } from "./receipt.js";
import { tokenCard } from "./token.js";
import { callCards, growCards, wantsResults } from "./tools.js";
import { isUnanswered } from "./tree.js";

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {import("./run.js").Progress} Progress */
/** @typedef {import("./asker.js").Asker} Asker */

/** A part that is made anew only if what it shows has another key. @param {string} name @param {string} [tag] */
function slot(name, tag = "div") {
  const element = /** @type {any} */ (h(tag, { class: name, hidden: true }));
  let last = "";
  return {
    element,
    /** @param {string} key  "" hides it @param {() => import("../core/dom.js").Child} make */
    show: (key, make) => {
      if (key === last) return;
      last = key;
      element.hidden = key === "";
      fill(element, key === "" ? null : make());
    },
  };
}

/** @param {string} text @param {() => void} onclick @param {string} [label] */
const act = (text, onclick, label) => button(text, onclick, { class: null, "aria-label": label });

/** @param {Message} message @param {Asker} asker */
function branches(message, asker) {
  const { number, of } = asker.branch(message);
  if (of < 2) return null;
  return h(
    "span.branch",
    act("‹", () => asker.turn(message, -1), "Previous branch"),
    `${number}/${of}`,
    act("›", () => asker.turn(message, 1), "Next branch"),
  );
}

/** A message of the user. @param {Message} message @param {Asker} asker */
export function createAsk(message, asker) {
  const text = h("p", message.content), bar = slot("acts");
  const element = h(
    "div.ask",
    h("div.asked", h("h2.hidden", "You"), text, bar.element),
  );
  const opener = act("Edit", () => {
    if (!text.isConnected) return;
    const field = h("textarea", { rows: 3, "aria-label": "Edited message", value: message.content });
    const cancel = () => (form.replaceWith(text), opener.focus());
    const form = h(
      "form.edit",
      {
        onsubmit: (/** @type {Event} */ event) => {
          event.preventDefault();
          if (!field.value.trim()) return;
          form.replaceWith(text);
          asker.edit(message, field.value);
        },
        onkeydown: (/** @type {KeyboardEvent} */ event) => {
          if (event.key === "Escape") (event.stopPropagation(), cancel());
        },
      },
      field,
      h("div.row.end", button("Cancel", cancel), h("button.send", { type: "submit" }, "Send")),
    );
    text.replaceWith(form);
    field.focus();
  });
  const update = () => {
    const { number, of } = asker.branch(message);
    bar.show(`${number}/${of}`, () => [branches(message, asker), opener]);
  };
  update();
  return { element, update };
}

/** The result of a tool. @param {Message} message */
export function createResult(message) {
  const label = `Result of ${message.name}`;
  const element = h("details.card", h("summary", label), jsonView(message.content));
  return { element, update: () => {} };
}

/** Tells elements when they come near the window: what is not in sight is made then. */
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    target.dispatchEvent(new Event("seen"));
  }
}, { rootMargin: "800px" });

/**
 * The tokens of an answer that is shown: in colours, marked, or chosen, with a card of what is known of it.
 * @param {Message} message
 * @param {Asker} asker
 * @param {HTMLElement} element  of the text
 * @param {Element} thinking
 */
function createColours(message, asker, element, thinking) {
  const pop = h("div.popped");
  let painter = /** @type {import("../text/tokens.js").Painter | null} */ (null), unchoosable = () => {};
  /** @param {number} index */
  const choose = (index) => {
    asker.chosen(message, index);
    fill(pop, index >= 0 && tokenCard(message, index, asker));
    const at = painter?.place(index);
    if (at) place(pop, at);
  };
  const marked = () => CAN_MARK && !isTree(message, asker) ? marks(message, element, thinking) : null;
  return {
    pop,
    clear: () => {
      fill(pop);
      unchoosable();
      unchoosable = () => {};
      painter?.end();
      painter = null;
    },
    /** @param {import("../text/tokens.js").Colour} colour */
    paint: (colour) => {
      const { tokens = [] } = message;
      painter = marked() || spans(element, tokens);
      painter.paint(classesOf(tokens, colour));
      unchoosable = choosable(element, painter, tokens.length, choose);
    },
    /** @param {number[]} indices */
    mark: (indices) => {
      painter ??= marked();
      painter?.mark(indices, "step");
      const at = indices.length > 0 && !pop.firstChild ? painter?.place(indices[0]) : null;
      (at instanceof Range ? at.startContainer.parentElement : at)?.scrollIntoView({ block: "nearest" });
    },
  };
}

/**
 * The text of an answer: Markdown as it comes, tokens in colours, or a tree of JSON.
 * @param {Message} message
 * @param {Asker} asker
 * @param {Element} thinking
 */
function createText(message, asker, thinking) {
  const element = h("div.text");
  const stream = createMarkdown(element), colours = createColours(message, asker, element, thinking);
  let colour = COLOURS[0], drawn = false, step = /** @type {number[]} */ ([]);
  onEnd(colours.clear);
  const plain = () => {
    colours.clear();
    drawn = true;
    if (isTree(message, asker)) {
      return fill(element, h("p.faint", "✓ valid JSON"), jsonView(message.content));
    }
    fill(element);
    showMarkdown(element, message.content);
  };
  if (asker.isRunning(message)) stream.write(message.content);
  else fill(element, h("p", message.content));
  return {
    element: h("div.said", element, colours.pop),
    write: stream.write,
    draw: stream.draw,
    end: plain,
    get colour() {
      return colour;
    },
    /** @param {import("../text/tokens.js").Colour} next */
    show: (next) => {
      colour = next;
      plain();
      if (next !== "Plain") colours.paint(next);
      if (step.length > 0) colours.mark(step);
    },
    /** Marks the tokens of a step. @param {number[]} indices */
    mark: (indices) => {
      if (indices.length === 0 && step.length === 0) return;
      step = indices;
      if (!drawn) plain();
      colours.mark(indices);
    },
  };
}

/** Whether an answer is shown as a tree of JSON. @param {Message} message @param {Asker} asker */
const isTree = (message, asker) => asker.isStructured() && isJson(message.content);

/** Below a token, within its text. @param {HTMLElement} pop @param {Element | Range} at */
function place(pop, at) {
  const frame = /** @type {HTMLElement} */ (pop.parentElement), rects = at.getClientRects();
  const last = rects[rects.length - 1];
  const { left, top } = frame.getBoundingClientRect();
  const most = frame.clientWidth - pop.offsetWidth;
  pop.style.setProperty("left", `${Math.max(0, Math.min(last.left - left - 16, most))}px`);
  pop.style.setProperty("top", `${last.bottom - top + 6}px`);
  pop.scrollIntoView({ block: "nearest" });
}

/** What a request waits for, before its answer begins. @param {Progress | string | undefined} progress @param {number} waited  seconds */
function progressLine(progress, waited) {
  const time = waited >= 1 ? ` · ${waited} s` : "";
  if (typeof progress !== "object") return `${progress ?? "Waiting for the first token"}${time}`;
  const { state, ahead, cached = 0, done = 0, of = 0, first_token_ms: left } = progress;
  if (state === "queued") return `${ahead ? `Waiting: ${ahead} before this one` : "Waiting"}${time}`;
  const bar = strip(
    "ratio",
    Math.max(1, of),
    3,
    h("rect.f-cached", { width: cached, height: 3 }),
    h("rect.f-prefill", { x: cached, width: done - cached, height: 3 }),
  );
  const first = left ? ` · first token in ≈ ${seconds(left / 1000)}` : "";
  return [bar, `prefill ${Math.floor(100 * done / Math.max(1, of))}% · ${tokens(of)}${first}${time}`];
}

/** @param {ReturnType<typeof createText>} text @param {Message} message */
function colourBar(text, message) {
  const legend = h("span.legend"), shown = signal(text.colour);
  /** @param {import("../text/tokens.js").Colour} colour */
  const set = (colour) => {
    text.show(colour);
    shown.set(colour);
    fill(legend, scale(colour, message.record));
  };
  const choices = COLOURS.map((colour) => /** @type {const} */ ([colour, colour, COLOUR_NOTES[colour]]));
  const buttons = choice(`Colour of tokens (${message.tokens?.length})`, { get: shown.get, set }, choices);
  const next = () => set(COLOURS[(COLOURS.indexOf(text.colour) + 1) % COLOURS.length]);
  return { element: h("span.colours", buttons, legend), next, set };
}

/** Why an answer that could go on has ended. @type {Record<string, string>} */
const ENDS = { length: "It ended at the maximum of tokens.", stopped: "You stopped it." };
const UNANSWERED = "This message is not sent with later ones.";
const PATIENCE_S = 0.3;

/** @param {Message} message @param {boolean} last @param {Asker} asker */
function endOf(message, last, asker) {
  const { content, finish = "", ids } = message;
  const ended = ENDS[finish] ?? "", begun = last && content ? ended : "";
  const text = isUnanswered(message) ? `${ended} ${UNANSWERED}`.trim() : begun;
  return { text, parts: [text, content && button("Continue", () => asker.goOn(message, content, ids))] };
}

/** What the record says of the answer, and its receipt. @param {Message} message @param {boolean} open @param {string | null} explain @param {Asker} asker */
function bill(message, open, explain, asker) {
  const { repeats } = message.record;
  const said = repeats &&
    `Note: the answer repeats itself: ${tokens(repeats.tokens)}, ${tokens(repeats.times, "time")}.`;
  return [said && h("p.state", said), safeReceipt(message, open, explain, asker)];
}

/** An answer. @param {Message} message @param {Asker} asker */
export function createAnswer(message, asker) {
  const thinking = h("p"), text = createText(message, asker, thinking);
  const thought = h("details.thought", { hidden: true }, h("summary", "Thinking"), thinking);
  const [state, calls, fault, bar, record] = ["state", "calls", "faults", "colour", "bill"].map((each) => slot(each));
  const element = h(
    "article.answer",
    h("h2.hidden", `Answer of ${message.model ?? "the model"}`),
    bar.element,
    thought,
    text.element,
    ...[state, calls, fault, record].map((each) => each.element),
  );
  /** @type {ReturnType<typeof colourBar> | null} */
  let colours = null;
  let near = asker.isRunning(message);
  /** @param {Progress | string} [progress] @param {number} [waited]  seconds */
  const comes = (progress, waited = 0) => {
    const begun = message.content !== "" || Boolean(message.reasoning) || Boolean(message.calls);
    const key = begun || waited < PATIENCE_S ? "" : JSON.stringify([progress, Math.floor(waited)]);
    state.show(key, () => progressLine(progress, Math.floor(waited)));
    const { number, of } = asker.branch(message);
    bar.show(of > 1 ? `${number}/${of}` : "", () => h("span.acts", branches(message, asker)));
    calls.element.hidden = !message.calls;
    growCards(calls.element, message.calls ?? []);
    text.draw();
  };
  /** @param {Progress | string} [progress] @param {number} [waited] */
  const update = (progress, waited) => {
    const last = asker.isLast(message);
    thought.hidden = !message.reasoning;
    retext(thinking, message.reasoning ?? "");
    if (asker.isRunning(message)) return comes(progress, waited);
    if (!near) return;
    const asked = last && wantsResults(message), ended = endOf(message, last, asker);
    state.show(ended.text, () => ended.parts);
    const { number, of } = asker.branch(message);
    bar.show(`${number}/${of} ${message.tokens?.length}`, () => {
      colours = message.tokens?.length ? colourBar(text, message) : null;
      return [colours?.element, h("span.acts", branches(message, asker), copies(message, asker))];
    });
    calls.show(
      message.calls ? String(asked) : "",
      () => callCards(message.calls ?? [], asked ? (results) => asker.results(message, results) : null),
    );
    fault.show(message.fault?.message ?? "", () => {
      const goOn = message.content && button("Continue", () => asker.goOn(message, message.content));
      const { fault } = /** @type {{fault: import("./tree.js").Fault}} */ (message);
      return faultBox(fault, () => asker.again(message), goOn);
    });
    const explain = asker.explain(message), known = message.record?.prompts.length > 0;
    record.show(known ? `${last} ${explain} ${asker.axis}` : "", () => bill(message, last, explain, asker));
  };
  update();
  if (!near) seen.observe(element);
  element.addEventListener("seen", () => (near = true, text.end(), update()));
  const end = () => (text.end(), update());
  const { write, mark } = text;
  return { ...{ element, update, write, end, mark }, colours: () => colours };
}

/**
 * The receipt; an imported record may lack what it needs.
 * @param {Message} message
 * @param {boolean} open
 * @param {string | null} explain
 * @param {Asker} asker
 */
function safeReceipt(message, open, explain, asker) {
  try {
    return receipt(message, { open, axis: asker.axis, explain, help: () => asker.help(message) });
  } catch {
    return h("p.faint", "The record of this answer is damaged.");
  }
}

const COPIES = /** @type {const} */ ([["text", "Copy"], ["curl", "as curl"], ["python", "as Python"]]);

/** @param {Message} message @param {Asker} asker */
function copies(message, asker) {
  return [
    act("Regenerate", () => asker.again(message)),
    COPIES.map(([form, name]) => copyButton(() => asker.copy(message, form), name, { class: null })),
  ];
}
