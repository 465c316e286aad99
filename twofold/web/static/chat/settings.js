// @ts-check
/** The dialog of a conversation's settings, and the chips of those that differ from the defaults. */

import { fill, h } from "../core/dom.js";
import { button, formDialog } from "../core/parts.js";
import { DEFAULTS, GROUPS, SETTINGS } from "./request.js";

/** @typedef {import("./request.js").Setting} Setting */
/** @typedef {{system: string, settings: Record<string, any>}} Settled */

/** What the formats that take a definition call it. @type {Record<string, string>} */
const DEFINITIONS = {
  "JSON schema": "JSON schema",
  regex: "Regular expression",
  choice: "Choices, one per line",
  grammar: "Grammar",
};

/** @param {Setting} setting @param {any} value @param {any} usual  what holds without it */
function control({ field, kind, min, max, options = [] }, value, usual) {
  const id = `set-${field}`, placeholder = usual === undefined ? "" : String(usual);
  if (kind === "number") {
    return h("input", { id, type: "number", min, max, step: "any", placeholder, value: value ?? "" });
  }
  if (kind === "line") return h("input", { id, placeholder, value: value ?? "" });
  if (kind === "flag") return h("input", { id, type: "checkbox", checked: value === true });
  if (kind === "select") {
    const all = ["", ...options].map((each) => h("option", { value: each }, each || `– (${placeholder})`));
    return h("select", { id, value: value ?? "" }, all);
  }
  const text = kind === "json" && value ? JSON.stringify(value, null, 1) : kind === "lines" ? value?.join("\n") : value;
  return h("textarea", { id, rows: 2, spellcheck: "false", value: text ?? "" });
}

/** The value of a control; undefined for the default. Throws an Error. @param {Setting} setting @param {any} element */
function valueOf({ kind, name }, { value: text, checked }) {
  if (kind === "flag") return checked || undefined;
  if (text.trim() === "") return undefined;
  if (kind === "number") return Number(text);
  if (kind === "lines") return text.split("\n").filter(Boolean);
  return kind === "json" ? parsed(name, text) : text;
}

/** @param {string} name @param {string} text */
function parsed(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: ${/** @type {Error} */ (error).message}`);
  }
}

/** @param {Record<string, any>} values */
function checkForm({ form, form_text: text, tools, other }) {
  if (form in DEFINITIONS && !text) throw new Error(`${DEFINITIONS[form]} is missing.`);
  if (form === "JSON schema") parsed("JSON schema", text);
  if (tools !== undefined && !Array.isArray(tools)) throw new Error("Tools are a JSON list.");
  if (other !== undefined && (typeof other !== "object" || Array.isArray(other))) {
    throw new Error("Other fields are a JSON object.");
  }
}

/** The model's own defaults. @param {import("../views.js").App} app */
const defaultsOf = ({ server, model }) =>
  server.peek()?.models.find((/** @type {any} */ each) => each.id === model.peek())?.sampling ?? {};

/** @param {Setting} setting @param {any} element */
const labelOf = ({ kind, name, note }, element) =>
  h("label", { class: `of-${kind}`, for: element.id }, h("span", name), element, note && h("small.faint", note));

/** @param {string} name @param {import("../core/dom.js").Child[]} parts */
const group = (name, parts) =>
  name === "Advanced"
    ? h("details.group", h("summary", name), h("div.fields", parts))
    : h("fieldset.group", h("legend", name), h("div.fields", parts));

/** Shows the definition of a format only with a format that takes one; what was typed stays. @param {Map<string, any>} controls */
function followFormat(controls) {
  const form = controls.get("form"), text = controls.get("form_text"), label = text.parentElement;
  const update = () => {
    label.hidden = !(form.value in DEFINITIONS);
    label.firstElementChild.textContent = DEFINITIONS[form.value] ?? "";
  };
  form.addEventListener("change", update);
  update();
}

/**
 * The dialog; `open` shows settings, `done` gets the new ones.
 * @param {import("../views.js").App} app
 * @param {(settled: Settled) => void} done
 */
export function createSettings(app, done) {
  const groups = h("div");
  const system = h("textarea", { id: "set-system", rows: 3 });
  /** @type {Map<string, any>} */
  const controls = new Map();
  const prompt = h("label.wide-field", { for: "set-system" }, h("span", "System prompt"), system);
  const { dialog, say } = formDialog("settings", "Settings", [groups], () => {
    const found = SETTINGS.map((setting) => [setting.field, valueOf(setting, controls.get(setting.field))]);
    const values = Object.fromEntries(found.filter(([, value]) => value !== undefined));
    checkForm(values);
    done({ system: system.value, settings: values });
  });
  /** @param {Settled} settled @param {string} [first] the field to begin with */
  function open(settled, first = "system") {
    say("");
    system.value = settled.system;
    const values = { ...DEFAULTS, ...settled.settings }, usual = defaultsOf(app);
    const labels = SETTINGS.map((setting) => {
      const element = control(setting, values[setting.field], usual[setting.field] ?? setting.usual);
      controls.set(setting.field, element);
      return { group: setting.group, label: labelOf(setting, element) };
    });
    const own = (/** @type {string} */ name) => labels.filter((each) => each.group === name).map(({ label }) => label);
    fill(groups, GROUPS.map((name) => group(name, [name === "Prompt" && prompt, own(name)])));
    followFormat(controls);
    dialog.showModal();
    const focused = document.getElementById(`set-${first}`), details = focused?.closest("details");
    if (details) details.open = true;
    focused?.focus();
  }
  return { dialog, open };
}

/** Chips of what differs from the defaults. @param {Settled} settled @param {(field: string) => void} open */
export function chips({ system, settings }, open) {
  const shown = SETTINGS.filter(({ field }) =>
    field in settings && settings[field] !== DEFAULTS[field] && field !== "form_text"
  );
  return [
    system && button("system prompt", () => open("system")),
    ...shown.map(({ field, name, kind }) => {
      const value = settings[field];
      const text = kind === "flag" ? "" : typeof value === "object" ? value.length ?? Object.keys(value).length : value;
      return button([`${name.toLowerCase()} `, h("b", text)], () => open(field));
    }),
    button("Settings", () => open("system")),
  ];
}
