# ruff: noqa: F401  (pytest collects them)
"""Tests of whole runs on one machine, again on the Ray engine: the same functions, imported.

Of those that have parameters one case each is called: what differs here is the engine.
"""

from __future__ import annotations

import signal

import pytest

from tests.integration.checkpoints.test_checkpoints import (
    TestRetry,
    test_all_reported_checkpoints,
    test_ranks_take_turns,
    test_the_ranks_files_are_merged,
)
from tests.integration.data import test_data as data
from tests.integration.data import test_data_resume as data_resume
from tests.integration.data.test_data import (
    test_global_batches_do_not_depend_on_the_number_of_workers,
    test_training_shards_are_equal,
    test_transforms_run_in_the_workers,
)
from tests.integration.failures import test_diagnosis as diagnosis
from tests.integration.failures import test_failures as failures
from tests.integration.failures import test_preemption as preemption
from tests.integration.failures.test_diagnosis import (
    test_a_death_comes_with_the_last_lines_of_the_log,
    test_a_hang_shows_a_tidy_stack,
)
from tests.integration.failures.test_failures import (
    test_a_death_goes_before_the_errors_it_brings_about,
    test_a_failing_rank_ends_one_that_is_stuck_in_c_code,
    test_a_local_exception_class_keeps_its_identity_and_its_traceback,
    test_a_retry_resumes_from_the_newest_checkpoint,
    test_all_ranks_fail_and_all_are_kept,
)
from tests.integration.reporting import test_reporting as reporting
from tests.integration.reporting.test_reporting import (
    test_every_ranks_ith_report_meets,
    test_log_before_the_last_report_survives_sigkill,
    test_log_keeps_every_row_of_every_rank_to_the_very_end,
)
from tests.integration.tune.test_tune import (
    test_a_decision_reaches_all_ranks_at_the_same_report,
    test_a_failing_trial_is_a_row_with_its_error,
    test_a_grid_of_a_function,
    test_a_paused_trial_resumes_from_its_checkpoint,
    test_retries_go_on_from_the_checkpoint,
)

pytestmark = [pytest.mark.environment("ray"), pytest.mark.timeout(180)]


def test_one_reduction_for_every_number() -> None:
    reporting.test_one_reduction_for_every_number("mean", 3.0)


def test_unequal_report_counts_are_named() -> None:
    counts, stopped = (1, 2, 2), "rank 0 returned after 1 report(s)"
    waiting = "ranks 1 and 2 reached report 2"
    reporting.test_unequal_report_counts_are_named_at_once(counts, stopped, waiting)


def test_a_process_that_dies_is_named_with_how() -> None:
    words = "was killed by SIGKILL"
    failures.test_a_process_that_dies_is_named_with_how("kill", -signal.SIGKILL, words)


def test_a_crash_shows_its_stack() -> None:
    diagnosis.test_a_crash_shows_its_stack("SIGSEGV")


def test_a_preempted_worker_is_replaced() -> None:
    preemption.TestWorker().test_the_run_continues_with_a_new_worker()


def test_a_preempted_driver_lets_its_ranks_save(capfd: pytest.CaptureFixture[str]) -> None:
    preemption.TestDriver().test_saves_stops_and_restores(capfd)


def test_every_row_exactly_once_for_evaluation() -> None:
    data.test_every_row_exactly_once_for_evaluation(3)


def test_a_killed_worker_costs_no_row() -> None:
    data_resume.test_a_killed_worker_costs_no_row("shuffled", "local")


def test_a_restore_with_another_number_of_workers() -> None:
    data_resume.test_a_restore_with_another_number_of_workers((2, 3, 1), "shuffled", "global")
