// @ts-check
import assert from "node:assert/strict";
import { asCurl, asPython, bodyOf } from "../../twofold/web/static/chat/request.js";
import { builtInResult, calculate, wantsResults } from "../../twofold/web/static/chat/tools.js";
import {
  add,
  branch,
  exported,
  imported,
  newConversation,
  path,
  sums,
  turn,
} from "../../twofold/web/static/chat/tree.js";
import { classesOf, gapsOf, medianOf, piecesOf, startsOf } from "../../twofold/web/static/text/tokens.js";

/** @typedef {import("../../twofold/web/static/chat/tree.js").Message} Message */

/** @param {ReturnType<typeof newConversation>} talk @param {string} parent @param {Message["role"]} role @param {string} content */
const say = (talk, parent, role, content) => add(talk, { parent, role, content });

/** @param {ReturnType<typeof newConversation>} talk */
const words = (talk) => path(talk).map((message) => message.content).join(" ");

function branched() {
  const talk = newConversation();
  const one = say(talk, "", "user", "one"), a = say(talk, one.id, "assistant", "a");
  say(talk, a.id, "user", "two");
  const b = say(talk, one.id, "assistant", "b");
  return { talk, one, a, b };
}

Deno.test("branches keep what is below them", () => {
  const { talk, one, a, b } = branched();
  assert.equal(words(talk), "one b");
  assert.deepEqual(branch(talk, b), { number: 2, of: 2 });
  assert.ok(turn(talk, b, -1));
  assert.equal(words(talk), "one a two");
  assert.equal(turn(talk, a, -1), false);
  say(talk, "", "user", "edited");
  assert.equal(words(talk), "edited");
  assert.deepEqual(branch(talk, one), { number: 1, of: 2 });
  assert.equal(talk.title, "one");
});

Deno.test("what is exported can be imported, and nothing else", () => {
  const { talk, b } = branched();
  Object.assign(b, { tokens: [["b", -0.1, 5, [["b", -0.1]], "d", 3]], finish: "stop" });
  assert.deepEqual(imported(exported([talk])), [talk]);
  for (const bad of ["", "[]", "{}", '{"schema": "twofold.chat/2", "conversations": []}']) {
    assert.throws(() => imported(bad), /This file is not/);
  }
  const orphan = exported([{ ...talk, messages: talk.messages.slice(1) }]);
  assert.throws(() => imported(orphan), /Conversation 1 of this file has a damaged message/);
  const shaped = JSON.parse(exported([talk]));
  shaped.conversations[0].messages[0].finish = { toString: "x" };
  assert.equal(imported(JSON.stringify(shaped))[0].messages[0].finish, undefined);
});

/** The paths of all values in a document. @param {any} value @returns {(string | number)[][]} */
const placesIn = (value) =>
  typeof value !== "object" || value === null
    ? [[]]
    : [[], ...Object.entries(value).flatMap(([name, each]) => placesIn(each).map((path) => [name, ...path]))];

Deno.test("a damaged import is refused in words, or what is left of it is shown", () => {
  const { talk, b } = branched();
  const calls = [{ id: "c", name: "f", arguments: "{}" }],
    record = { prompts: [{ prefill_s: 1 }], tokens: { prompt: 1 } };
  Object.assign(b, { tokens: [["b", -0.1, 5, [["b", -0.1]], "d", 3]], ids: [1], calls, record });
  talk.settings = { temperature: 1, stop: ["x"], tools: [{}], form: "JSON schema", form_text: "{}", clock: true };
  const text = exported([talk]);
  for (const place of placesIn(JSON.parse(text)).filter((each) => each.length > 0)) {
    for (const wrong of [null, 7, "x", [], {}, [null]]) {
      const document = JSON.parse(text), name = place.at(-1) ?? "";
      place.slice(0, -1).reduce((part, each) => part[each], document)[name] = wrong;
      try {
        for (const read of imported(JSON.stringify(document))) {
          sums(read.messages);
          words(read);
          bodyOf("m", read, path(read));
        }
      } catch (error) {
        assert.match(String(error), /^Error: (This file is not|Conversation 1 of this file)/, `${place} = ${wrong}`);
      }
    }
  }
});

Deno.test("results can be sent once all calls are there", () => {
  const call = { id: "c", name: "f", arguments: '{"a": 1}' }, cut = { ...call, arguments: '{"a": ' };
  const says = (/** @type {any} */ message) => wantsResults({ ...message });
  assert.deepEqual(
    [
      says({ finish: "tool_calls", calls: [cut] }),
      says({ finish: "length", calls: [call] }),
      says({ finish: "length", calls: [call, cut] }),
      says({ finish: "length" }),
      says({ finish: "stopped", calls: [call] }),
    ],
    [true, true, false, false, false],
  );
});

Deno.test("a body has what the settings say", () => {
  const { talk, b } = branched();
  talk.system = "Be short.";
  talk.settings = {
    ...{ temperature: 0.7, stop: ["x"], form: "JSON schema", form_text: '{"type": "object"}', clock: true, pin: "1h" },
    ...{ top_logprobs: 0, other: { min_tokens: 3 } },
  };
  const body = bodyOf("tiny", talk, path(talk), { begun: "So", prices: ["anthropic/claude-sonnet-4-6"] });
  assert.deepEqual(body.messages, [
    { role: "system", content: "Be short." },
    { role: "user", content: "one" },
    { role: "assistant", content: "b" },
    { role: "assistant", content: "So" },
  ]);
  const { messages: _, tools, ...rest } = body;
  assert.equal(tools[0].function.name, "current_time");
  assert.deepEqual(rest, {
    ...{ model: "tiny", temperature: 0.7, stop: ["x"], min_tokens: 3, continue_final_message: true },
    response_format: { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" } } },
    prompt_cache_options: { ttl: "1h" },
    ...{
      stream: true,
      stream_options: { include_usage: true },
      twofold: { explain: true, tokens: true, progress: true, compare_prices: ["claude-sonnet-4-6"] },
    },
  });
  const exact = bodyOf("tiny", talk, path(talk), { begun: "So", ids: [7, 8] });
  assert.equal(exact.messages.length, 3);
  assert.equal(exact.continue_final_message, undefined);
  assert.deepEqual(exact.twofold.answer_token_ids, [7, 8]);
  b.calls = [{ id: "c", name: "f", arguments: "{}" }];
  b.content = "";
  say(talk, b.id, "tool", "3").call = "c";
  assert.deepEqual(bodyOf("tiny", talk, path(talk)).messages.slice(2), [
    {
      role: "assistant",
      content: null,
      tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }],
    },
    { role: "tool", content: "3", tool_call_id: "c" },
  ]);
});

Deno.test("a request is copied as a command and as a program", () => {
  const talk = newConversation({ seed: 3, top_k: 5 });
  say(talk, "", "user", 'it\'s "so"');
  const body = bodyOf("tiny", talk, path(talk));
  assert.match(asCurl("http://h", body, true), /^curl http:\/\/h\/v1\/chat\/completions .*Bearer \$OPENAI_API_KEY/s);
  assert.match(asCurl("http://h", body, false), /it'\\''s \\"so\\"/);
  const program = asPython("http://h", body, false);
  assert.match(program, /seed=3,/);
  assert.match(program, /logprobs=True/);
  assert.match(program, /extra_body=\{"top_k": 5, "twofold": \{"explain": True, "tokens": True\}\}/);
});

Deno.test("the calculator calculates and evaluates nothing", () => {
  const cases = /** @type {[string, number][]} */ ([
    ...[["1+2*3", 7], ["(1+2)*3", 9], ["2^3^2", 512], ["-2*-3", 6], ["7%4", 3], ["1.5e3/2", 750], ["2**3", 8]],
  ]);
  for (const [text, value] of cases) assert.equal(calculate(text), value, text);
  for (const bad of ["", "alert(1)", "1+", "(1", "1 2", "__proto__"]) assert.throws(() => calculate(bad), bad);
  assert.equal(builtInResult({ id: "", name: "calculate", arguments: '{"expression": "6*7"}' }), "42");
  assert.match(builtInResult({ id: "", name: "calculate", arguments: "{" }) ?? "", /^Error/);
  assert.equal(builtInResult({ id: "", name: "other", arguments: "{}" }), null);
});

Deno.test("tokens are classed by time, surprise and origin", () => {
  const times = [10, 20, 30, 40, 80],
    tokens = times.map((
      ms,
      index,
    ) => /** @type {import("../../twofold/web/static/chat/tree.js").Token} */ ([
      "x",
      -index,
      ms,
      [],
      "ddgsd"[index],
      -1,
    ]));
  assert.deepEqual(gapsOf(tokens).slice(1), [10, 10, 10, 40]);
  assert.equal(medianOf(gapsOf(tokens)), 10);
  assert.deepEqual(classesOf(tokens, "Time"), ["", "b", "b", "b", "e"]);
  assert.deepEqual(classesOf(tokens, "Surprise"), ["a", "c", "d", "e", "e"]);
  assert.deepEqual(classesOf(tokens, "Origin"), ["", "", "g", "s", ""]);
});

Deno.test("sums are those of the records", () => {
  const talk = newConversation();
  const record = { tokens: { prompt: 10, cached: 4, output: 3 }, prompts: [{ prefill_s: 0.5, decode_s: 1 }] };
  add(talk, { parent: "", role: "assistant", content: "", record });
  assert.deepEqual(sums(talk.messages), { prompt: 10, cached: 4, output: 3, prefill: 0.5, decode: 1 });
});

Deno.test("a token is found in the answer and where it is shown", () => {
  /** @param {string} text @param {string} [made] @returns {import("../../twofold/web/static/chat/tree.js").Token} */
  const token = (text, made) => [text, 0, 0, [], "d", -1, made];
  const tokens = [
    token("hm"),
    token("</think>"),
    token("\ufffd", ""),
    token("\ufffd", "😀"),
    token("**a**"),
    token("\n"),
  ];
  const message = {
    id: "",
    parent: "",
    role: /** @type {const} */ ("assistant"),
    content: "x😀**a**",
    begun: "x",
    tokens,
  };
  assert.deepEqual(startsOf({ ...message, reasoning: "hm" }), {
    answer: [-1, -1, 1, 1, 3, 8],
    thinking: [0, -1, -1, -1, -1, -1],
  });
  assert.deepEqual(piecesOf([-1, -1, 1, 1, 3, 8], [[0, 3], [5, 1]], [3, 1]), [
    { token: 3, node: 0, from: 1, to: 3 },
    { token: 4, node: 1, from: 0, to: 1 },
  ]);
  assert.equal(piecesOf([0], [[0, 3]], [2]), null);
});
