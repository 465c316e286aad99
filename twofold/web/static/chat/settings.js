// @ts-check
/** The dialog of a conversation's settings, and the chips of those that differ from the defaults. */

import { fill, h } from "../core/dom.js";
import { button, formDialog } from "../core/parts.js";
import { DEFAULTS, SETTINGS } from "./request.js";

/** @typedef {import("./request.js").Setting} Setting */
/** @typedef {{system: string, settings: Record<string, any>}} Settled */

/** @param {Setting} setting @param {any} value */
function control({ field, kind, min, max, options = [] }, value) {
  const id = `set-${field}`;
  if (kind === "number") return h("input", { id, type: "number", min, max, step: "any", value: value ?? "" });
  if (kind === "line") return h("input", { id, value: value ?? "" });
  if (kind === "flag") return h("input", { id, type: "checkbox", checked: value === true });
  if (kind === "select") {
    const all = ["", ...options].map((each) => h("option", { value: each }, each || "–"));
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
  if (form === "JSON schema") parsed("Format definition", text ?? "");
  if (tools !== undefined && !Array.isArray(tools)) throw new Error("Tools are a JSON list.");
  if (other !== undefined && (typeof other !== "object" || Array.isArray(other))) {
    throw new Error("Other fields are a JSON object.");
  }
}

/**
 * The dialog; `open` shows settings, `done` gets the new ones.
 * @param {(settled: Settled) => void} done
 */
export function createSettings(done) {
  const fields = h("div.fields");
  const system = h("textarea", { id: "set-system", rows: 3 });
  /** @type {Map<Setting, any>} */
  const controls = new Map();
  const label = h("label", { for: "set-system" }, "System prompt");
  const { dialog, say } = formDialog("settings", "Settings", [label, system, fields], () => {
    const found = [...controls].map(([setting, element]) => [setting.field, valueOf(setting, element)]);
    const values = Object.fromEntries(found.filter(([, value]) => value !== undefined));
    checkForm(values);
    done({ system: system.value, settings: values });
  });
  /** @param {Settled} settled @param {string} [first] the field to begin with */
  function open(settled, first = "system") {
    say("");
    system.value = settled.system;
    const values = { ...DEFAULTS, ...settled.settings };
    controls.clear();
    fill(
      fields,
      SETTINGS.map((setting) => {
        const element = control(setting, values[setting.field]);
        controls.set(setting, element);
        const note = setting.note ? h("small.faint", setting.note) : null;
        return h("label", { class: `of-${setting.kind}`, for: element.id }, h("span", setting.name), element, note);
      }),
    );
    dialog.showModal();
    document.getElementById(`set-${first}`)?.focus();
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
