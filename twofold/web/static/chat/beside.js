// @ts-check
/** The engine beside the chat: a chosen step marks the tokens that it made, a chosen token marks its step. */

import { effect, scope } from "../core/signal.js";

/** @typedef {import("./tree.js").Message} Message */

/**
 * @param {import("../views.js").App} app
 * @param {import("../core/signal.js").Signal<boolean>} open
 * @param {HTMLElement} frame  gets the engine as its last child while it is open
 * @param {() => [Message, {mark?: (indices: number[]) => void}][]} answers  that are shown
 */
export function createBeside(app, open, frame, answers) {
  /** @type {Promise<{choose: (message: Message, index: number) => Promise<boolean>, end: () => void}> | null} */
  let shown = null;
  const begin = async () => {
    const view = await app.load("engine").catch(() => null);
    if (!view) {
      open.set(false);
      app.refresh(); // which says that the server does not answer
      return { choose: () => Promise.resolve(false), end: () => {} };
    }
    const { promise: told, resolve: begun } = Promise.withResolvers();
    const [{ element, model, choose, stepOf }, stop] = scope(() => {
      const engine = view.createEngine(app, true), { chosen } = engine.model;
      effect(() => {
        const step = chosen.get();
        for (const [message, view] of answers()) view.mark?.(step ? engine.tokensIn(message, step) : []);
      });
      effect(() => {
        if (engine.model.second.get() > 0) begun(null);
      });
      return engine;
    });
    frame.append(element);
    /** Chooses the step of a token, or none; false if the engine does not know it any more. */
    const chooseOf = async (/** @type {Message} */ message, /** @type {number} */ index) => {
      await told;
      const step = stepOf(message, index);
      if (!step) model.paused.set(null);
      choose(step);
      return step !== null;
    };
    return { choose: chooseOf, end: () => (stop(), element.remove()) };
  };
  effect(() => {
    frame.classList.toggle("with", open.get());
    if (open.get()) shown = begin();
    return () => {
      shown?.then(({ end }) => end());
      shown = null;
    };
  });
  return {
    /** @param {Message} message @param {number} index */
    chosen: (message, index) => void shown?.then(({ choose }) => choose(message, index)),
    /** @param {Message} message @param {number} index */
    step: (message, index) => {
      open.set(true);
      return /** @type {NonNullable<typeof shown>} */ (shown).then(({ choose }) => choose(message, index));
    },
  };
}
