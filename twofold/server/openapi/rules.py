"""Conditions of requests that no schema expresses; the description of an operation lists its own."""

from __future__ import annotations

from typing import Final

from twofold.server.admission import MAX_OWN_PRIORITY
from twofold.server.openapi.route import RequestRule

UNSUPPORTED: Final = "unsupported_parameter"
MISSING: Final = "missing_required_parameter"

CONTEXT: Final = RequestRule(
    "The prompt leaves room for an output token in the model's context.", None, "context_length_exceeded"
)
TEMPLATE: Final = RequestRule(
    "The model's chat template accepts the messages: it may require that roles alternate, or that the user's message "
    "is first; arguments of calls are the JSON text of an object.",
    None,
    "invalid_messages",
)
CONTENT: Final = RequestRule(
    "A system or user message has content; prefix is on the last message, the assistant's.", "messages", "invalid_value"
)
PROMPT: Final = RequestRule("A prompt has at least one token.", "prompt")
IDS: Final = tuple(
    RequestRule(f"Token ids in {name} are below the size of the model's vocabulary.", name)
    for name in ("prompt_token_ids", "stop_token_ids", "logit_bias")
)
STREAM_OPTIONS: Final = RequestRule("stream_options needs stream.", "stream_options")
VALID_GRAMMAR: Final = (
    RequestRule(
        "The schema, expression or grammar of structured output is valid. Errors name "
        "structured_outputs, whichever field has it.",
        "structured_outputs",
    ),
    RequestRule("The token limit has room for the shortest structured output.", "max_tokens"),
)
STRUCTURED_OUTPUT: Final = (
    *VALID_GRAMMAR,
    RequestRule("structured_outputs and response_format exclude each other.", "structured_outputs"),
    RequestRule("Structured output excludes ignore_eos.", "ignore_eos"),
    RequestRule("Structured output excludes min_tokens; min_tokens is at most max_tokens.", "min_tokens"),
)
THINKING: Final = (
    RequestRule("The model has thinking sections.", "reasoning_effort", UNSUPPORTED),
    RequestRule("The model has thinking sections.", "thinking_token_budget", UNSUPPORTED),
    RequestRule("With a budget, reasoning_effort is not none.", "thinking_token_budget"),
    RequestRule("The model has thinking sections.", "reasoning", UNSUPPORTED),
    RequestRule("With max_tokens, effort is not none.", "reasoning.max_tokens"),
    RequestRule("reasoning excludes reasoning_effort and thinking_token_budget.", "reasoning"),
)
TOOL_CHOICE: Final = (
    RequestRule("tool_choice needs tools and names only these.", "tool_choice"),
    RequestRule("A tool that must be called is a function.", "tools", "unsupported_value"),
)
PRIORITY: Final = RequestRule(f"Within a service tier, priority is from 0 to {MAX_OWN_PRIORITY}.", "priority")
STORED: Final = RequestRule("Caching a prompt for 24h requires a KV store.", "ttl")
SAMPLED: Final = (CONTEXT, PRIORITY, *IDS, *STRUCTURED_OUTPUT, STREAM_OPTIONS, STORED)
CONTINUED: Final = RequestRule(
    "A message that is continued is the last one, of the assistant, without tool calls; it excludes "
    "add_generation_prompt, structured output and forced calls, and the chat template renders it.",
    "continue_final_message",
)
ANSWERED: Final = RequestRule(
    "An answer that has begun consists of the model's tokens, follows the generation prompt, and has no structured "
    "output and no forced call.",
    "twofold.answer_token_ids",
)
UNCONSTRAINED: Final = RequestRule(
    "A completion that continues a message has no structured output and no forced call.", "messages"
)
KEEP: Final = RequestRule("keep is below 1.", "keep")
QUESTION: Final = RequestRule("The question is not blank, and has at most 256 tokens.", "question")
TEXT: Final = RequestRule("The text is not binary, and has several sentences, of which one is not protected.", "text")
CHAT: Final = (
    *SAMPLED,
    *THINKING,
    TEMPLATE,
    CONTENT,
    CONTINUED,
    UNCONSTRAINED,
    ANSWERED,
    RequestRule("Progress needs stream.", "twofold.progress"),
    *TOOL_CHOICE,
    RequestRule("max_tokens and max_completion_tokens are equal if both are given.", "max_tokens"),
    RequestRule("top_logprobs needs logprobs.", "top_logprobs"),
    KEEP,
    QUESTION,
    TEXT,
)
COMPLETION: Final = (
    *SAMPLED,
    PROMPT,
    RequestRule("suffix needs a model with fill-in-the-middle tokens and a text prompt; it excludes echo.", "suffix"),
    RequestRule("max_tokens 0 needs echo.", "max_tokens"),
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
    RequestRule("text_1 has one text, or as many texts as text_2.", "text_1"),
    RequestRule("queries and text_1 are two names of one field.", "queries"),
    RequestRule("documents and text_2 are two names of one field.", "documents"),
)
COMPRESS: Final = (
    PRIORITY,
    KEEP,
    QUESTION,
    TEXT,
    RequestRule("Ranges lie in the text and do not overlap; parts occur in it.", "protect"),
)
DETOKENIZE: Final = (RequestRule("Token ids are below the size of the model's vocabulary.", "tokens"),)
TURN: Final = (
    TEMPLATE,
    *TOOL_CHOICE,
    RequestRule("input is needed unless previous_response_id is given.", "input", MISSING),
    RequestRule("The output of a call follows its call.", "input"),
    RequestRule("Names of tools are unique.", "tools"),
    RequestRule("The stored conversation is short enough to be continued.", "previous_response_id"),
)
RESPONSE: Final = (
    *TURN,
    CONTEXT,
    PRIORITY,
    STORED,
    RequestRule("The model has thinking sections.", "reasoning.effort", UNSUPPORTED),
    RequestRule("top_logprobs needs message.output_text.logprobs in include.", "top_logprobs"),
    *VALID_GRAMMAR,
)
MESSAGES: Final = (
    CONTEXT,
    TEMPLATE,
    STORED,
    RequestRule(
        "There are at most four cache_control; in the order tools, system, messages, those of 1h come first.",
        "cache_control",
    ),
    RequestRule("Names of tools are unique.", "name"),
    RequestRule("tool_result has the id of an earlier tool_use.", "tool_use_id"),
    RequestRule(
        "If the last message is the assistant's, it does not end in white space and calls no tool, and thinking is "
        "disabled.",
        "messages",
    ),
    UNCONSTRAINED,
    *TOOL_CHOICE,
    RequestRule("No conversation is kept: a thread is not continued.", "thread"),
    RequestRule("output_format and output_config.format exclude each other.", "output_format"),
    *VALID_GRAMMAR,
)
AFTER: Final = RequestRule("after is the id of an entry of the list.", "after")
INCLUDE: Final = RequestRule("Stored responses have log-probabilities only if they were requested at first.", "include")
UPLOAD_FORM: Final = RequestRule("The file has a name, no field is repeated, and texts are in UTF-8.", "file")
LIFETIME: Final = RequestRule("expires_after[anchor] and expires_after[seconds] go together.", "expires_after", MISSING)
INPUT_FILE: Final = RequestRule("The file exists.", "input_file_id", "not_found")
OLLAMA_PENALTIES: Final = RequestRule("repeat_last_n is -1 if a penalty is given.", "repeat_last_n")
OLLAMA: Final = (
    CONTEXT,
    OLLAMA_PENALTIES,
    RequestRule("top_logprobs needs logprobs.", "top_logprobs"),
    RequestRule("The model has thinking sections.", "think"),
    *VALID_GRAMMAR,
)
OLLAMA_TEXT: Final = (
    *OLLAMA,
    TEMPLATE,
    RequestRule("system excludes raw and suffix, and needs a chat template.", "system"),
    RequestRule("suffix needs a model with fill-in-the-middle tokens.", "middle of a text"),
)
OLLAMA_EMBEDDING: Final = (*EMBEDDING, OLLAMA_PENALTIES)
LOADED: Final = RequestRule("The model is loaded.", "model")
REPLICAS: Final = RequestRule("The model is loaded, and has no KV store if it gets several replicas.", "replicas")
DRAINED: Final = RequestRule("Another replica is ready.", "replica")
