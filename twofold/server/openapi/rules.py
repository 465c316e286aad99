"""What the readers ask for beyond single fields; the description of an operation tells those that it has."""

from __future__ import annotations

from typing import Final

from twofold.server.admission import MAX_OWN_PRIORITY
from twofold.server.openapi.operation import RequestRule

UNSUPPORTED: Final = "unsupported_parameter"
MISSING: Final = "missing_required_parameter"

CONTEXT: Final = RequestRule(
    "A prompt must leave room for a token of answer in the model's context.", None, "context_length_exceeded"
)
TEMPLATE: Final = RequestRule(
    "The model's chat template must take the messages: it may want roles to alternate, or a user's message first, and "
    "arguments of calls must be the JSON text of an object.",
    None,
    "invalid_messages",
)
CONTENT: Final = RequestRule("A message has content, or calls tools.", "messages", "invalid_value")
PROMPT: Final = RequestRule("A prompt has at least one token.", "prompt")
IDS: Final = tuple(
    RequestRule(f"Token ids in {name} are below the size of the model's vocabulary.", name)
    for name in ("prompt_token_ids", "stop_token_ids", "logit_bias")
)
STREAM_OPTIONS: Final = RequestRule("stream_options needs stream.", "stream_options")
COMPILED: Final = (
    RequestRule(
        "The form of an answer is one that can be compiled: a valid schema, expression or grammar. Errors about it, "
        "however it was given, blame structured_outputs.",
        "structured_outputs",
    ),
    RequestRule("An answer of a form has room for its shortest text in the tokens that it may have.", "max_tokens"),
)
FORMS: Final = (
    *COMPILED,
    RequestRule("structured_outputs and response_format exclude each other.", "structured_outputs"),
    RequestRule("A form excludes ignore_eos.", "ignore_eos"),
    RequestRule("A form excludes min_tokens; min_tokens is at most max_tokens.", "min_tokens"),
)
THINKING: Final = (
    RequestRule("A model must have a thinking section to honour it.", "reasoning_effort", UNSUPPORTED),
    RequestRule("A model must have a thinking section to honour it.", "thinking_token_budget", UNSUPPORTED),
    RequestRule("With a budget, reasoning_effort is not none.", "thinking_token_budget"),
)
TOOL_CHOICE: Final = RequestRule(
    "tool_choice needs tools, names one of them where it names one, and excludes a form of the answer unless it is "
    "auto or none.",
    "tool_choice",
)
PRIORITY: Final = RequestRule(f"Within a service tier, priority is from 0 to {MAX_OWN_PRIORITY}.", "priority")
SAMPLED: Final = (CONTEXT, PRIORITY, *IDS, *FORMS, STREAM_OPTIONS)
CONTINUED: Final = RequestRule(
    "A message that is continued is the last one, of the assistant without tool calls; add_generation_prompt, a form "
    "of the answer and a forced call exclude it, and the chat template must show it.",
    "continue_final_message",
)
NO_FORM: Final = RequestRule(
    "An answer that goes on from a given beginning has no form and is no forced call.", "messages"
)
CHAT: Final = (
    *SAMPLED,
    *THINKING,
    TEMPLATE,
    CONTENT,
    CONTINUED,
    NO_FORM,
    TOOL_CHOICE,
    RequestRule("max_tokens and max_completion_tokens are equal where both are given.", "max_tokens"),
    RequestRule("top_logprobs needs logprobs.", "top_logprobs"),
)
COMPLETION: Final = (
    *SAMPLED,
    PROMPT,
    RequestRule(
        "suffix needs a model with tokens for filling in the middle, a prompt that is text, and no echo.", "suffix"
    ),
    RequestRule("max_tokens 0 needs echo.", "max_tokens"),
    RequestRule("max_tokens 0 cannot be streamed.", "max_tokens", UNSUPPORTED),
    RequestRule("logprobs with echo cannot be streamed.", "logprobs", UNSUPPORTED),
    RequestRule("best_of above n cannot be streamed.", "best_of", UNSUPPORTED),
    RequestRule("best_of is at least n.", "best_of"),
)
EMBEDDING: Final = (
    CONTEXT,
    PRIORITY,
    IDS[0],
    PROMPT,
    RequestRule("dimensions is the length of the model's vectors.", "dimensions"),
)
RERANK: Final = (CONTEXT, PRIORITY, RequestRule("A text has at least one token.", "prompt"))
SCORE: Final = (
    *RERANK,
    RequestRule("text_1 is required, under one of its names.", "text_1", MISSING),
    RequestRule("text_2 is required, under one of its names.", "text_2", MISSING),
    RequestRule("text_1 is one text, or as many as text_2.", "text_1"),
    RequestRule("queries and text_1 are two names of one field.", "queries"),
    RequestRule("documents and text_2 are two names of one field.", "documents"),
)
TOKENIZE: Final = (*CHAT,)
DETOKENIZE: Final = (RequestRule("Token ids are below the size of the model's vocabulary.", "tokens"),)
TURN: Final = (
    TEMPLATE,
    TOOL_CHOICE,
    RequestRule("input is needed unless previous_response_id is given.", "input", MISSING),
    RequestRule("What came of a call stands behind that call.", "input"),
    RequestRule("Tools have names of their own.", "tools"),
    RequestRule("A conversation is short enough to be continued.", "previous_response_id"),
)
RESPONSE: Final = (
    *TURN,
    CONTEXT,
    PRIORITY,
    RequestRule("A model must have a thinking section to honour it.", "reasoning.effort", UNSUPPORTED),
    RequestRule("top_logprobs needs message.output_text.logprobs in include.", "top_logprobs"),
    *COMPILED,
)
MESSAGES: Final = (
    CONTEXT,
    TEMPLATE,
    RequestRule(
        "At most four cache_control, those of 1h first, in the order tools, system, messages.", "cache_control"
    ),
    RequestRule("Tools have names of their own.", "name"),
    RequestRule("tool_result names a tool_use before it.", "tool_use_id"),
    RequestRule(
        "Where the last message is the assistant's, its beginning of the answer ends in no white space, calls no tool, "
        "and thinking is off.",
        "messages",
    ),
    NO_FORM,
    TOOL_CHOICE,
    RequestRule("output_format and output_config.format exclude each other.", "output_format"),
    *COMPILED,
)
AFTER: Final = RequestRule("after is the id of an entry of the list.", "after")
INCLUDE: Final = RequestRule("Log-probabilities are told again only where they were told at first.", "include")
FORM: Final = RequestRule("The file comes with a name, each field stands once, and texts are in UTF-8.", "file")
LIFETIME: Final = RequestRule("expires_after[anchor] and expires_after[seconds] go together.", "expires_after", MISSING)
INPUT_FILE: Final = RequestRule("The file is there.", "input_file_id", "not_found")
SINCE: Final = RequestRule("since is a day.", "since")
