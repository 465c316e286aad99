// @ts-check
/** Drawing at a bounded pace, and waiting. */

/**
 * Calls `draw` at the next frame after it was asked for, at most `hz` times a second, and never in a hidden tab: what
 * was asked for there is drawn when the tab is shown again.
 * @param {() => void} draw
 * @param {number} hz
 * @returns {{ask: () => void, end: () => void}}
 */
export function paced(draw, hz) {
  let wanted = false, frame = 0, last = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | 0} */
  let timer = 0;
  const run = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    frame = timer = 0;
    if (!wanted) return;
    wanted = false;
    last = performance.now();
    draw();
  };
  const plan = () => {
    if (!wanted || frame || timer || document.hidden) return;
    const wait = last + 1000 / hz - performance.now() - 8; // half a frame early, so that the frame is not missed
    if (wait > 0) timer = setTimeout(() => (timer = 0, frame = requestAnimationFrame(run)), wait);
    else frame = requestAnimationFrame(run);
  };
  document.addEventListener("visibilitychange", plan);
  return {
    ask: () => {
      wanted = true;
      plan();
    },
    end: () => {
      wanted = false;
      run();
      document.removeEventListener("visibilitychange", plan);
    },
  };
}

/** Runs once the tab is seen. @param {() => void} run */
export function whenSeen(run) {
  if (document.hidden) document.addEventListener("visibilitychange", () => whenSeen(run), { once: true });
  else run();
}

/**
 * Resolves after some seconds, or when `abort` is triggered.
 * @param {number} seconds
 * @param {AbortSignal} abort
 */
export function sleep(seconds, abort) {
  const over = AbortSignal.any([abort, AbortSignal.timeout(1e3 * seconds)]);
  return new Promise((resolve) => over.aborted ? resolve(null) : over.addEventListener("abort", resolve));
}
