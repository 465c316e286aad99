// @ts-check
/** Server-sent events of a `fetch` response. EventSource cannot send a key in a header. */

/** @typedef {{event: string, data: string}} ServerEvent `event` is "message" if the server names none */

/**
 * Reads the events out of pieces of a stream: `feed` returns those that a piece completes.
 * @returns {{feed: (piece: string) => ServerEvent[]}}
 */
export function eventReader() {
  let rest = "", event = "", carriage = false;
  /** @type {string[]} */
  let data = [];
  /** @param {string} line @param {ServerEvent[]} found */
  const take = (line, found) => {
    if (line === "") {
      if (data.length > 0) found.push({ event: event || "message", data: data.join("\n") });
      event = "";
      data = [];
      return;
    }
    const colon = line.indexOf(":"), name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") data.push(value);
    else if (name === "event") event = value;
  };
  return {
    feed: (piece) => {
      /** @type {ServerEvent[]} */
      const found = [];
      const text = carriage && piece.startsWith("\n") ? piece.slice(1) : piece;
      if (piece) carriage = piece.endsWith("\r");
      const lines = (rest + text).split(/\r\n|\n|\r/);
      rest = lines.pop() ?? "";
      for (const line of lines) take(line, found);
      return found;
    },
  };
}

/**
 * The events of a response, until it ends or is aborted, which throws what `fetch` throws.
 * @param {Response} response
 * @returns {AsyncGenerator<ServerEvent, void, void>}
 */
export async function* eventsOf(response) {
  const reader = eventReader(), decoder = new TextDecoder();
  const body = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (response.body).getReader();
  try {
    for (;;) {
      const { value, done } = await body.read();
      if (done) return;
      yield* reader.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    body.cancel().catch(() => {});
  }
}
