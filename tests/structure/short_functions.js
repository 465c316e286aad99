// @ts-check
/** A rule for deno lint: functions of the page have fewer than 60 lines. */

const MAX_LINES = 59;

/** @param {Deno.lint.RuleContext} context @param {any} node */
function check(context, node) {
  const lines = context.sourceCode.text.slice(node.range[0], node.range[1]).split("\n").length;
  if (lines > MAX_LINES) context.report({ node, message: `A function of ${lines} lines; at most ${MAX_LINES}.` });
}

/** @type {Deno.lint.Plugin} */
const plugin = {
  name: "twofold",
  rules: {
    "short-functions": {
      create: (context) => ({
        FunctionDeclaration: (node) => check(context, node),
        FunctionExpression: (node) => check(context, node),
        ArrowFunctionExpression: (node) => check(context, node),
      }),
    },
  },
};

export default plugin;
