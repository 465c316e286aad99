// @ts-check
/** What makes answers richer and is not needed to type: colours of code, and formulas. */

import { coloured } from "./code.js";
import { rich } from "./inline.js";
import { formula } from "./math.js";

/** From now on code has colours, and formulas are set. */
export function mount() {
  Object.assign(rich, { coloured, formula });
}
