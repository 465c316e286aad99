// @ts-check
/** The receipt of an answer: where its time went, from its record, and the least that this machine needs for it. */

import { fill, h } from "../core/dom.js";
import { count, money, roughShare, seconds, tokens } from "../core/form.js";
import { button, strip } from "../core/parts.js";

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {{cause: string, start_ms: number, end_ms: number}} Pause */

const SHORTER = "shorter output", LONG = 64;
const WIDTH = 1000, HEIGHT = 44, BASE = 30, MAX_BARS = 400;

/** The figures of a record: sums over its prompts, of which a chat has one. @param {any} record */
export function figuresOf(record) {
  const [{ queue_s, prefill_s, decode_s, ttft_s, output_tokens, prefill, decode }] = record.prompts;
  const gaps = Math.max(0, output_tokens - 1);
  return {
    ttft: ttft_s,
    tpot: gaps > 0 ? decode_s / gaps : null,
    queue: queue_s,
    prefill: prefill_s,
    decode: decode_s,
    leastPrefill: prefill.least_s ?? null,
    leastToken: gaps > 0 && decode.least_s !== undefined ? decode.least_s / gaps : null,
    leastDecode: decode.least_s ?? null,
    boundPrefill: prefill.bound ?? "",
    boundDecode: decode.bound ?? "",
    sharePrefill: prefill.roofline_share ?? null,
    shareDecode: decode.roofline_share ?? null,
  };
}

/**
 * The record of one of several answers of a request: its own tokens and times, and the least of the steps of all.
 * Others have the record of their request.
 * @param {Message} message
 */
export function recordOf({ record, choice }) {
  const times = choice === undefined ? undefined : record.timeline?.token_ms[choice];
  if (!times) return record;
  const [all] = record.prompts, output = times.length, first = times[0] / 1000, gaps = Math.max(0, output - 1);
  const spent = times[gaps] / 1000 - first, least_s = all.decode.least_s * gaps / all.decode.steps;
  const own = { output_tokens: output, ttft_s: first, prefill_s: first - all.queue_s };
  const decode = { decode_s: spent, decode: { ...all.decode, least_s, roofline_share: least_s / spent } };
  return {
    ...record,
    tokens: { ...record.tokens, output },
    prompts: [{ ...all, ...own, ...decode }],
    timeline: { ...record.timeline, token_ms: [times] },
    answers: record.timeline.token_ms.length,
  };
}

/** When each token came, in seconds since the request arrived: by the engine, else as this browser saw it. @param {Message} message */
function tokenTimes({ record, tokens: got = [] }) {
  const told = record.timeline?.token_ms?.[0];
  if (told) return told.map((/** @type {number} */ ms) => ms / 1000);
  const first = record.prompts[0].ttft_s ?? 0, zero = got[0]?.[2] ?? 0;
  return got.map((token) => first + (token[2] - zero) / 1000);
}

/** Bars of the gaps between tokens; of very many, the longest of neighbours. @param {number[]} times */
function gapBars(times) {
  const each = Math.ceil(times.length / MAX_BARS), bars = [];
  for (let at = 1; at < times.length; at += each) {
    const part = times.slice(at - 1, at + each), gaps = part.slice(1).map((time, index) => time - part[index]);
    bars.push({ from: part[0], to: part[part.length - 1], gap: Math.max(...gaps) });
  }
  return bars;
}

/** @param {string} fill @param {number} x @param {number} width @param {number} y @param {number} height */
const rect = (fill, x, width, y, height) => h("rect", { class: fill, x, width: Math.max(1.5, width), y, height });

/** Seconds from the arrival of a request to its end. @param {Message} message  has a record */
export function lastTime(message) {
  const { queue, prefill, decode } = figuresOf(message.record);
  return Math.max(queue + prefill + decode, tokenTimes(message).at(-1) ?? 0, 1e-6);
}

/** @param {Message} message @param {number} axis  seconds that the picture has at least */
function fold(message, axis) {
  const figures = figuresOf(message.record), { queue, prefill } = figures;
  const times = tokenTimes(message), end = Math.max(lastTime(message), axis);
  /** @param {number} time */
  const x = (time) => WIDTH * time / end;
  const bars = gapBars(times), longest = Math.max(...bars.map((bar) => bar.gap), 1e-9);
  const first = queue + prefill;
  const steps = prefillSteps(message.record, queue, prefill);
  /** @type {Pause[]} */
  const pauses = message.record.timeline?.pauses ?? [];
  const picture = strip(
    "fold",
    WIDTH,
    HEIGHT,
    rect("f-queue", 0, x(queue), BASE - 4, 4),
    steps.map(([from, to]) => rect("f-prefill", x(from), x(to - from) - 1, 2, BASE - 2)),
    bars.map((bar) => {
      const height = Math.max(4, (BASE - 2) * bar.gap / longest), width = x(bar.to - bar.from);
      return rect("f-decode", x(bar.from), width - Math.min(1, width / 4), BASE - height, height);
    }),
    pauses.map((pause) =>
      rect("f-stall", x(pause.start_ms / 1000), x((pause.end_ms - pause.start_ms) / 1000), 2, BASE - 2)
    ),
    rect("f-ink", x(first) - 0.75, 1.5, 0, HEIGHT - 4),
    figures.leastPrefill !== null && rect("f-prefill least", x(queue), x(figures.leastPrefill), BASE + 5, 5),
    figures.leastDecode !== null && rect("f-decode least", x(first), x(figures.leastDecode), BASE + 5, 5),
  );
  return h(
    "figure.when",
    h("p.axis", h("span", `first token ${seconds(figures.ttft)}`), h("span", seconds(end))),
    picture,
    h("figcaption.axis", summary(figures, pauses)),
  );
}

/**
 * From and to of the steps of prefill: as the engine tells them, else in equal parts.
 * @param {any} record
 * @param {number} queue
 * @param {number} prefill
 * @returns {[number, number][]}
 */
function prefillSteps({ timeline, prompts }, queue, prefill) {
  if (timeline) {
    const { ms, end_ms: ends, own_prompt_rows: rows } = timeline.steps;
    /** @param {number} at @returns {[number, number]} */
    const span = (at) => [(ends[at] - ms[at]) / 1000, ends[at] / 1000];
    return [...rows.keys()].filter((at) => rows[at] > 0).slice(0, MAX_BARS).map(span);
  }
  const { steps } = prompts[0].prefill, size = prefill / Math.max(1, steps);
  const count = Math.min(steps, MAX_BARS);
  return Array.from({ length: count }, (_, index) => [queue + index * size, queue + (index + 1) * size]);
}

/** @param {ReturnType<typeof figuresOf>} figures @param {Pause[]} pauses */
function summary({ queue, prefill, decode, leastPrefill }, pauses) {
  const least = leastPrefill === null ? "" : "; thin bars: the minimum on this machine";
  const lost = pauses.reduce((sum, pause) => sum + pause.end_ms - pause.start_ms, 0) / 1e3;
  const paused = lost > 0 ? `, paused ${seconds(lost)} (${[...new Set(pauses.map((each) => each.cause))]})` : "";
  return `queue ${seconds(queue)}, prefill ${seconds(prefill)}, decode ${seconds(decode)}${paused}${least}`;
}

/** @param {string} label @param {string} kind @param {string} value @param {...import("../core/dom.js").Child} notes */
const fact = (label, kind, value, ...notes) =>
  h("div", h("dt", label), h("dd", { class: kind }, value, notes.map((note) => h("small", note))));

/** How much of what this machine can do was reached, and what limits it. @param {number | null} least @param {number | null} share @param {string} bound */
function limitOf(least, share, bound) {
  if (least === null || share === null) return ["limit not measured"];
  const reached = share > 1 ? "at this machine's measured limit" : `${roughShare(share)} of this machine's limit`;
  return [reached, `limit ${seconds(least)}, ${bound}`];
}

/** @param {Message} message */
function facts({ record }) {
  const figures = figuresOf(record), { tokens: used, cost } = record, price = record.at_prices?.[0];
  const { leastPrefill, boundPrefill, sharePrefill, leastToken, boundDecode, shareDecode } = figures;
  const here = cost ? money(cost.total, cost.currency) : null;
  const several = record.answers ? `; all ${record.answers} answers` : "";
  return h(
    "dl.facts",
    fact("Time to first token", "p", seconds(figures.ttft), ...limitOf(leastPrefill, sharePrefill, boundPrefill)),
    fact("Time per output token", "d", seconds(figures.tpot), ...limitOf(leastToken, shareDecode, boundDecode)),
    fact(
      "Tokens",
      "",
      `${count(used.prompt)} in → ${count(used.output)} out`,
      h("span.c", `${count(used.cached)} from the cache`),
    ),
    price
      ? fact(
        "Cost",
        "",
        money(price.total, price.currency),
        `at ${price.model}${here ? `; here ${here}` : ""}${several}`,
      )
      : fact("Cost", "", here ?? "–", here ? `here${several}` : "no --price-sheet"),
  );
}

/** What the line of a folded receipt says. @param {any} record */
export function lineOf(record) {
  const { ttft, tpot } = figuresOf(record), { prompt, cached, output } = record.tokens;
  return [
    `first token ${seconds(ttft)}`,
    tpot ? `${(1 / tpot).toPrecision(3)} tok/s` : "",
    tokens(output),
    cached > 0 ? `${roughShare(cached / prompt)} cached` : "",
    record.cost ? money(record.cost.total, record.cost.currency) : "",
  ].filter(Boolean).join(" · ");
}

/** A thin bar of the seconds of both phases. @param {number} prefill @param {number} decode @param {string} name */
export function phaseBar(prefill, decode, name) {
  const all = prefill + decode || 1, at = 100 * prefill / all;
  return strip(
    name,
    100,
    3,
    h("rect.f-prefill", { width: at, height: 3 }),
    h("rect.f-decode", { x: at + 0.6, width: Math.max(0, 99.4 - at), height: 3 }),
  );
}

/**
 * What would help, by gain: asked for by a click, because it takes the server a second.
 * @param {string} explain
 * @param {() => Promise<any>} help
 * @param {boolean} long  whether a shorter answer is advice
 */
function helps(explain, help, long) {
  const line = h("span"), link = h("a", { href: explain }, "Explain");
  const ask = async () => {
    line.textContent = "…";
    try {
      const { levers } = await help();
      const helps = (/** @type {any} */ { status, lever }) => status === "gains" && (long || lever !== SHORTER);
      const best = /** @type {any[]} */ (levers).filter(helps).slice(0, 3);
      const named = best.map((each) => [h("b", `×${each.gains.e2e.toFixed(2)}`), ` ${each.lever} `]);
      fill(line, best.length > 0 ? ["Would help: ", named] : "Nothing would help.");
    } catch (error) {
      line.textContent = /** @type {Error} */ (error).message;
    }
  };
  fill(line, button("What would help?", ask));
  return h("p.helps", line, link);
}

/**
 * The receipt, folded to a line unless `open`.
 * @param {Message} message  has a record
 * @param {{open: boolean, axis: number, explain: string | null, help: () => Promise<any>}} options  `axis`: seconds
 *   that its picture has at least; `explain`: the address that explains this request, null if the server cannot; `help`
 *   asks for it
 */
export function receipt(message, { open, axis, explain, help }) {
  const record = recordOf(message), own = { ...message, record }, { prefill, decode } = figuresOf(record);
  return h(
    "details.receipt",
    { open },
    h("summary", phaseBar(prefill, decode, "ratio"), h("span", lineOf(record))),
    fold(own, axis),
    facts(own),
    explain && helps(explain, help, record.tokens.output >= LONG),
  );
}
