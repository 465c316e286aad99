// @ts-check
/** The kept conversations: search, choice, export, import, deletion; and the sums of all. */

import { fill, h } from "../core/dom.js";
import { count, roughShare } from "../core/form.js";
import { button, download, faultLine, filePicker } from "../core/parts.js";
import { effect, signal } from "../core/signal.js";
import { phaseBar } from "./receipt.js";
import { exported, imported, sums } from "./tree.js";

/** @typedef {import("./tree.js").Conversation} Conversation */

/** @param {number} time Unix seconds */
function dayOf(time) {
  const days = Math.floor((new Date().setHours(24, 0, 0, 0) / 1000 - time) / 86400);
  return days < 1 ? "Today" : days < 2 ? "Yesterday" : days < 7 ? "This week" : "Earlier";
}

/** @param {Conversation[]} talks @param {string} words */
function found(talks, words) {
  const wanted = words.toLowerCase();
  if (!wanted) return talks;
  const says = (/** @type {string} */ text) => text.toLowerCase().includes(wanted);
  return talks.filter((talk) => says(talk.title) || talk.messages.some((message) => says(message.content)));
}

/**
 * @param {ReturnType<typeof import("./kept.js").createKept>} kept
 * @param {{current: import("../core/signal.js").ReadSignal<Conversation>, open: (talk: Conversation) => void,
 *   create: () => void}} options
 */
export function createSidebar(kept, { current, open, create }) {
  const words = signal(""), list = h("ol"), sum = h("p.sum");
  const wrong = faultLine();
  const search = h("input", {
    ...{ type: "search", placeholder: "Search", "aria-label": "Search conversations" },
    oninput: () => words.set(search.value),
  });
  const picker = filePicker({ accept: ".json,application/json" }, async ([file]) => {
    try {
      for (const talk of imported(await (file?.text() ?? ""))) await kept.save(talk);
      wrong.say(kept.fault.peek());
    } catch (error) {
      wrong.say(/** @type {Error} */ (error).message);
    }
  });
  const clear = () => confirm("Delete all conversations in this browser?") && (kept.clear(), create());
  effect(() => fill(list, rows(found(kept.talks.get(), words.get()), current.get().id, open)));
  effect(() => void (sum.textContent = total(kept.talks.get())));
  effect(() => {
    current.get();
    wrong.say(kept.fault.get());
  });
  const all = [
    button("Export", () => download(exported(kept.talks.peek()), "twofold-chats.json")),
    button("Delete all", clear),
  ];
  const element = h(
    "aside.side",
    { id: "side", "aria-label": "Conversations" },
    h("button.new", { type: "button", onclick: create }, "New chat", h("kbd", "Ctrl K")),
    search,
    wrong.element,
    list,
    sum,
    h("div.chips", button("Import", () => picker.click()), all),
    picker,
  );
  effect(() => all.forEach((each) => (each.hidden = kept.talks.get().length === 0)));
  return { element, search };
}

/** @param {Conversation[]} talks @param {string} id @param {(talk: Conversation) => void} open */
function rows(talks, id, open) {
  let day = "";
  return talks.flatMap((talk) => {
    const own = sums(talk.messages), before = day;
    day = dayOf(talk.updated);
    const row = h(
      "li",
      h(
        "button",
        { type: "button", "aria-current": talk.id === id ? "true" : null, onclick: () => open(talk) },
        h("span", talk.title || "Untitled"),
        own.output > 0 && phaseBar(own.prefill, own.decode, "thin"),
      ),
    );
    return day === before ? [row] : [h("li.day", day), row];
  });
}

/** @param {Conversation[]} talks */
function total(talks) {
  const begun = new Date().setDate(1) / 1000 - 86400;
  const { prompt, cached, output } = sums(
    talks.filter(({ updated }) => updated >= begun).flatMap((talk) => talk.messages),
  );
  if (output === 0) return "";
  return `This month ${count(prompt + output)} tokens, ${roughShare(cached / Math.max(1, prompt))} of prompts cached`;
}

/** Saves one conversation as a file. @param {Conversation} talk */
export const downloadTalk = (talk) => download(exported([talk]), "twofold-chat.json");
