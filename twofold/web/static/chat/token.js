// @ts-check
/** What is known of one token: its probability, the alternatives, and when it came. */

import { h } from "../core/dom.js";
import { count, roughShare, seconds } from "../core/form.js";
import { button, strip } from "../core/parts.js";
import { gapsOf, ORIGIN_NAMES, startsOf } from "../text/tokens.js";

/** @typedef {import("./tree.js").Message} Message */

/** A token as it can be seen: spaces and line ends are signs. @param {string} text */
const visible = (text) => text.replaceAll("\n", "↵").replace(/^ | $/g, "␣");

/** @param {number} logprob */
const probability = (logprob) => roughShare(Math.exp(logprob));

/**
 * @param {Message} message
 * @param {number} index
 * @param {import("./asker.js").Asker} asker
 */
export function tokenCard(message, index, asker) {
  const tokens = message.tokens ?? [], [text, logprob, , others, origin, step] = tokens[index];
  const gap = gapsOf(tokens)[index], before = textBefore(message, index);
  const rows = others.some(([other]) => other === text) || logprob === null
    ? others
    : [/** @type {[string, number]} */ ([text, logprob]), ...others];
  return h(
    "div.pop",
    { role: "group", "aria-label": `Token ${visible(text)}` },
    h(
      "h3",
      h("code", `“${visible(text)}”`),
      h("span.faint", Number.isNaN(gap) ? "the first token" : `${seconds(gap / 1000)} after the last`),
    ),
    rows.length > 0 &&
      h(
        "ul",
        rows.map(([other, p, id]) => {
          const choose = before !== null && (() => asker.goOn(message, before + other, idsTo(message, index, id)));
          return h("li", alternative(other, p, other === text, choose));
        }),
      ),
    h(
      "p.why",
      ORIGIN_NAMES[origin] ?? "",
      step >= 0 && [", in ", inStep(step, asker.step?.bind(asker, message, index))],
      why(message, step),
    ),
    rows.length > 1 && h("p.faint", "Click an alternative to branch from here."),
  );
}

/** A step, which the engine can show. @param {number} step @param {(() => Promise<boolean>) | undefined} show */
function inStep(step, show) {
  const name = `step ${count(step)}`;
  if (!show) return name;
  const onclick = async () => {
    if (!await show()) shown.replaceWith(`${name} (which the engine does not keep any more)`);
  };
  const shown = button(name, onclick);
  return shown;
}

/** @param {string} text @param {number} logprob @param {boolean} taken @param {false | (() => void)} choose */
function alternative(text, logprob, taken, choose) {
  const width = Math.max(1, 100 * Math.exp(logprob));
  return h(
    "button",
    {
      type: "button",
      disabled: taken || !choose,
      onclick: choose,
      "aria-label": `${visible(text)}, ${probability(logprob)}`,
    },
    h("code", visible(text)),
    strip("", 100, 7, h("rect", { class: taken ? "f-decode" : "f-queue", width, height: 7 })),
    h("span", probability(logprob)),
  );
}

/** The answer before a token; null if it is not of the answer, but of the thinking before it. @param {Message} message @param {number} index */
function textBefore(message, index) {
  const at = startsOf(message).answer[index];
  return at < 0 ? null : message.content.slice(0, at);
}

/** The tokens before a token, and an alternative to it; none if they are not known. @param {Message} message @param {number} index @param {number} [id] */
function idsTo({ ids = [], begunIds = 0, tokens = [] }, index, id) {
  return id === undefined || ids.length !== begunIds + tokens.length ? [] : [...ids.slice(0, begunIds + index), id];
}

/** What else was in the step of a token. @param {Message} message @param {number} step */
function why({ record }, step) {
  const steps = record?.timeline?.steps, at = steps?.n?.indexOf(step) ?? -1;
  if (at < 0) return ".";
  const rows = steps.prompt_rows[at], alone = steps.alone_ms?.[at];
  const company = rows > 0 ? ` with ${count(rows)} prompt rows` : "";
  const least = alone == null ? "" : `; ${seconds(alone / 1000)} alone`;
  return `${company}: ${seconds(steps.ms[at] / 1000)}${least}.`;
}
