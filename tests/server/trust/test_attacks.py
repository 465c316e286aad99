"""Attacks that were tried against a server, and the tests that show that they fail.

Paths are below ``tests``. The tests are bounded forms: counts, bytes and outcomes instead of minutes of load.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[2]
ATTACKS: Final[dict[str, str]] = {
    "bytes that are no HTTP, request smuggling": """
        server/trust/test_bytes.py::test_one_answer_to_odd_bytes
        server/trust/test_limits.py::test_bytes_that_are_no_request_get_an_error
        server/edge/test_sockets.py::test_random_bytes_are_harmless""",
    "JSON bombs": """
        server/trust/test_bytes.py::test_one_answer_to_odd_json
        server/edge/test_body.py::test_bombs_are_refused_before_they_are_decoded""",
    "odd values in every field": """
        server/trust/test_fuzz.py::test_an_odd_value_in_any_place_is_answered_or_refused
        server/openapi/test_explored.py::test_whatever_is_sent_is_answered_as_documented
        api/test_openai.py::test_template_variables_that_cannot_be""",
    "tools with odd schemas": """
        server/trust/test_fuzz.py::test_tools_with_odd_schemas_are_answered_or_refused
        engine/grammar/test_tool_forms.py::test_schemas_that_make_no_sense_do_not_raise""",
    "single bodies of 2 MB that block the event loop": """
        server/trust/test_turns.py::test_others_are_answered_during_a_request_of_many_prompts
        server/trust/test_turns.py::test_long_replies_are_made_on_a_thread
        server/edge/test_body.py::test_brackets_and_commas_in_strings_are_not_counted
        text/test_prompt_limit.py::test_what_cannot_fit_is_not_tokenised""",
    "floods of large bodies": """
        server/trust/test_flood.py::test_a_flood_of_large_bodies_delays_no_other_client
        server/test_pool.py::test_a_flood_of_one_caller_delays_another_by_one_piece_of_work""",
    "bodies without their last byte": """
        server/trust/test_flood.py::test_bodies_are_bounded_together
        server/edge/test_sockets.py::test_slow_bodies_get_a_408""",
    "slow heads, silent connections, pipelining": """
        server/edge/test_sockets.py::test_slow_heads_get_a_408
        server/edge/test_sockets.py::test_silent_connections_are_closed_for_new_ones
        server/edge/test_sockets.py::test_pipelined_requests_are_served""",
    "heads that are reset, to fill the log": """
        server/trust/test_bytes.py::test_connections_that_are_reset_leave_nothing""",
    "clients that leave at random": """
        server/trust/test_disconnects.py::test_two_hundred_disconnects_at_any_time_leave_nothing
        server/trust/test_disconnects.py::test_memory_does_not_grow""",
    "streams that are not read": """
        server/trust/test_limits.py::test_a_client_that_does_not_read_delays_no_other
        server/trust/test_unread.py::test_unread_streams_give_their_slots_to_others_and_lose_nothing
        server/edge/test_sockets.py::test_a_client_that_does_not_read_is_disconnected""",
    "one request or key that takes the whole queue or all slots": """
        server/test_admission.py::test_one_request_of_many_prompts_leaves_room_for_other_tenants
        engine/scheduler/test_shares.py::test_a_second_tenant_is_served_within_a_few_steps
        engine/scheduler/test_shares.py::test_two_tenants_that_want_all_slots_get_half_each""",
    "the worker is killed under streams and queued requests": """
        server/trust/test_crash.py::test_a_worker_that_is_killed_while_it_streams
        fleet/test_faults.py::test_clients_see_no_fault
        fleet/test_crashes.py::test_requests_go_on_after_a_kill
        fleet/test_crashes.py::test_a_request_that_crashes_three_processes_fails
        fleet/test_crashes.py::test_kills_from_outside_are_not_the_fault_of_a_request""",
    "the server is killed in a batch and an upload": """
        server/batches/test_recovery.py::test_batches_of_a_killed_server_are_continued
        server/files/test_files.py::test_whole_files_survive_a_crash_and_partial_ones_do_not""",
    "batch lines of 4 MB": """
        server/batches/test_batches.py::test_inputs_with_invalid_lines_fail_as_a_whole
        text/test_prompt_limit.py::test_what_cannot_fit_is_not_tokenised""",
    "odd batch lines": """
        api/batch/test_bodies.py::test_bodies_that_cannot_be_are_refused
        api/batch/test_files.py::test_lines_that_are_no_requests
        server/batches/test_batches.py::test_a_line_that_fails_is_its_own_error""",
    "quotas that batches, counting and uploads pass by": """
        server/trust/test_quotas.py::test_every_post_counts_as_a_request
        server/trust/test_quotas.py::test_bodies_count_by_their_bytes
        server/trust/test_quotas.py::test_lines_of_a_batch_count
        server/trust/test_quotas.py::test_the_batch_of_a_removed_key_ends""",
    "routes without a key, spellings of paths": """
        server/trust/test_access.py::test_every_route_and_method_is_closed_without_a_key
        server/trust/test_access.py::test_no_spelling_of_a_path_avoids_the_key""",
    "other tenants' files, responses, caches and metrics": """
        server/trust/test_tenants.py::test_stored_objects_do_not_exist_for_another_tenant
        server/trust/test_tenants.py::test_a_cached_prefix_is_found_only_by_its_key
        server/trust/test_tenants.py::test_cached_completions_are_found_only_by_their_key
        server/trust/test_tenants.py::test_a_stored_response_is_not_replaced_by_one_of_the_same_request_id
        server/trust/test_quotas.py::test_metrics_name_no_other_tenant""",
    "canaries in everything that a caller writes": """
        server/trust/test_canaries.py::test_canaries_appear_nowhere
        server/trust/test_leaks.py::test_no_error_quotes_a_prompt_or_a_path""",
    "a full disk": """
        server/files/test_files.py::test_a_database_on_a_full_disk_leaves_no_bytes
        server/batches/test_recovery.py::test_writing_to_a_full_disk_is_retried""",
    "ambiguous and exploding grammars": """
        engine/grammar/test_hosted.py::test_a_form_that_exceeds_its_limits_affects_no_other
        engine/grammar/test_hosted.py::test_random_forms_are_compiled_or_refused
        engine/grammar/test_compile.py::test_impossible_forms_are_refused_in_a_sentence""",
    "hostile chat templates": """
        text/test_sandbox.py::test_nothing_is_in_reach
        text/test_sandbox.py::test_memory_is_bounded
        text/test_sandbox.py::test_time_is_bounded
        server/trust/test_turns.py::test_a_hostile_template_delays_no_other_model""",
    "mutated model files": """
        formats/test_gguf_hostile.py::test_every_byte_flipped
        formats/test_gguf_hostile.py::test_overwritten_anywhere""",
    "malformed wheels": """
        formats/test_wheels.py::test_mutations
        formats/test_wheels.py::test_malformed_records""",
}


@cache
def names_in(path: str) -> set[str]:
    """The names of a file's tests."""
    return {node.name for node in ast.parse((TESTS / path).read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_has_its_tests(attack: str) -> None:
    named = [test.partition("::") for test in ATTACKS[attack].split()]
    assert [name for path, _, name in named if name not in names_in(path)] == []
