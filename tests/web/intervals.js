// @ts-check
/** Prints the comparison of two files by the page's module: `deno run --allow-read intervals.js a.json b.json`. */

import { compared } from "../../twofold/web/static/bench/intervals.js";

const [a, b] = Deno.args.map((path) => JSON.parse(Deno.readTextFileSync(path)));
/** @param {string} _ @param {unknown} value */
const plain = (_, value) => value === Infinity ? null : value;
console.log(JSON.stringify(await compared(a, b), plain));
