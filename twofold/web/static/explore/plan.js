// @ts-check
/** Plan: the cheapest machines that serve traffic within objectives, as a job of the server. */

import { ApiError, given } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { money, seconds, share } from "../core/form.js";
import { button } from "../core/parts.js";
import { onEnd } from "../core/signal.js";
import { chartView } from "../draw/chart.js";
import { wideTable } from "../draw/table.js";
import { choiceField, faultOf, listOf, numberField, numberOf, textField } from "./fields.js";
import { MODELS, RENTED } from "./levers.js";

/** @typedef {import("./fields.js").Form} Form */

const POLL_MS = 300;
/** @type {Record<string, string>} */
const WAITS = { queued: "Waiting for other calculations …", running: "Searching for plans …" };

/** @param {Form} form */
export function planFields(form) {
  return [
    textField(form, "model", "Models, with commas", { hint: "llama-3-8b", known: MODELS, several: true }),
    textField(form, "machines", "Machines, with commas", { hint: "h100,l40s", known: RENTED, several: true }),
    numberField(form, "rate", "Requests per second", { low: 0.01, high: 1000, start: 10, whole: false }),
    numberField(form, "input", "Prompt tokens", { high: 100_000, start: 1024 }),
    numberField(form, "output", "Output tokens", { high: 8000, start: 256 }),
    numberField(form, "ttft", "TTFT objective (ms)", { low: 10, high: 20_000, start: 1000 }),
    numberField(form, "tpot", "TPOT objective (ms)", { high: 1000, start: 50 }),
    choiceField(form, "attain", "Share of requests within objectives", [["0.9", "90%"], ["0.95", "95%"], [
      "0.99",
      "99%",
    ]]),
    textField(form, "devices", "Devices per replica", { hint: "1,2,4,8" }),
    choiceField(form, "simulate", "Evaluate plans by", [["yes", "simulation"], ["no", "estimate"]]),
  ];
}

/** @param {import("./fields.js").State} s */
export function planBody(s) {
  const tp = listOf(s.devices).map(Number);
  return given({
    models: listOf(s.model || "llama-3-8b"),
    hardware: listOf(s.machines || "h100,l40s").map((each) => each.split(/[:=]/)[0]),
    rate: numberOf(s.rate) ?? 10,
    input_tokens: numberOf(s.input),
    output_tokens: numberOf(s.output),
    slo: {
      ttft: (numberOf(s.ttft) ?? 1000) / 1000,
      tpot: (numberOf(s.tpot) ?? 50) / 1000,
      attainment: numberOf(s.attain) ?? 0.9,
    },
    tp: tp.length ? tp : undefined,
    simulate: s.simulate === "no" ? false : undefined,
  });
}

/** @param {HTMLElement} root @param {import("../views.js").App} app @param {Form} form */
export function openPlan(root, app, form) {
  /** @type {string | null} */
  let job = null;
  let ended = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const result = h("div", { "aria-live": "off" });
  const finder = button("Find plans", () => job ? stop() : start(), { class: "send" });
  const told = h("span.faint", { role: "status" });
  const path = () => `/v1/twofold/plans/${job}`;
  const idle = () => {
    job = null;
    finder.textContent = "Find plans";
    told.textContent = "";
  };
  const fail = (/** @type {unknown} */ error) => {
    idle();
    if (!(error instanceof ApiError)) throw error;
    fill(result, faultOf(error, start));
  };
  const poll = async () => {
    if (document.hidden) return void (timer = setTimeout(poll, POLL_MS));
    try {
      const found = await app.api.get(path());
      if (ended || !job) return;
      if (found.status in WAITS) {
        told.textContent = WAITS[found.status];
        timer = setTimeout(poll, POLL_MS);
        return;
      }
      app.api.remove(path()).catch(() => {});
      idle();
      if (found.error) throw new ApiError([found.error.message, found.error.hint].join(" "), { status: 400 });
      fill(result, ...plansOf(found.result));
      app.announce(`${found.result.plans.length} plans found.`);
    } catch (error) {
      fail(error);
    }
  };
  async function start() {
    finder.disabled = true;
    try {
      job = (await app.api.post("/v1/twofold/plans", planBody(form.state()))).id;
      finder.textContent = "Stop";
      poll();
    } catch (error) {
      fail(error);
    }
    finder.disabled = false;
  }
  function stop() {
    clearTimeout(timer);
    if (job) app.api.remove(path()).catch(() => {});
    idle();
  }
  fill(root, h("h2", "The cheapest way to serve traffic"), h("p.row", finder, told), result);
  onEnd(() => (ended = true, stop()));
}

/** @param {any} found @returns {any[]} */
function plansOf({ plans, tried, chart }) {
  const rows = /** @type {any[]} */ (plans).map((plan) => [
    `${plan.tp} × ${plan.hardware}, ${plan.model}`,
    ...[plan.dollars_per_hour, plan.dollars_per_million_output_tokens].map((amount) => money(amount)),
    plan.devices,
    plan.both || `${plan.prefill} + ${plan.decode}`,
    `${plan.weights}, KV ${plan.kv}`,
    plan.split ? "split" : plan.chunk,
    ...[plan.ttft, plan.tpot].map((each) => seconds(each.at_attainment_s)),
    plan.attained === null ? "estimated" : `${share(plan.attained)} met`,
  ]);
  const head = "replica,$/h,$/M tokens,devices,replicas,weights,step,TTFT,TPOT,objectives".split(",");
  return [
    h("p", `${tried} configurations were tried. The cheapest:`),
    wideTable("Plans", head, rows),
    h("ul.notes", plans[0].reasons.map((/** @type {string} */ each) => h("li", each))),
    chartView(chart),
  ];
}
