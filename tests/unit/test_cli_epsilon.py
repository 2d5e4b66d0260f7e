"""The calculator: its contract for scripts, its tables for people, and every way to misuse it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pate.accounting import (
    Conversion,
    Gaussian,
    GaussianNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    Repeated,
    ThresholdCheck,
    compose,
    confident_total,
    gaussian_total,
    integer_moments,
    laplace_total,
)
from pate.accounting.composition import gaussian_epsilon
from pate.cli import main

COUNTS = np.random.default_rng(0).multinomial(250, [0.8] + [0.2 / 9] * 9, size=60)


@pytest.fixture
def votes(tmp_path):
    np.save(tmp_path / "votes.npy", COUNTS)
    return tmp_path / "votes.npy"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command in this process; returns its exit code, output and messages."""

    def run_(*arguments):
        monkeypatch.setattr(sys, "argv", ["pate", "epsilon", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return run_


@pytest.fixture
def report(run):
    def report_(*arguments):
        code, out, err = run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return report_


def test_lnmax_contract(report, votes):
    found = report("lnmax", "--votes", votes, "--scale", 20, "--delta", 1e-5, "--queries", 40)
    total = laplace_total(COUNTS[:40], scale=20.0).guarantee(delta=1e-5)
    assert found["queries"] == 40
    assert found["teachers"] == 250
    assert found["data_dependent"]["epsilon"] == total.epsilon
    assert found["data_dependent"]["moment"] == total.moment
    assert found["data_dependent"]["delta"] == 1e-5
    assert found["data_dependent"]["publishable"] is False
    independent = compose([Repeated(LaplaceNoisyMaxAnswer(scale=20.0), 40)]).guarantee(delta=1e-5)
    assert found["data_independent"]["epsilon"] == independent.epsilon
    assert found["data_independent"]["moment"] == independent.moment
    assert found["data_independent"]["publishable"] is True


def test_without_queries_all_rows_count(report, votes):
    assert report("lnmax", "--votes", votes, "--scale", 20, "--delta", 1e-5)["queries"] == 60


def test_without_votes_only_the_data_independent_epsilon(report):
    found = report("lnmax", "--scale", 20, "--delta", 1e-5, "--queries", 100)
    assert "data_dependent" not in found
    assert found["data_independent"]["epsilon"] > 0


def test_moments_and_conversion_are_the_users(report, votes):
    found = report(
        "gnmax", "--votes", votes, "--sigma", 40, "--delta", 1e-6, "--max-moment", 12,
        "--conversion", "classic",
    )  # fmt: skip
    total = gaussian_total(COUNTS, sigma=40.0, moments=integer_moments(12))
    expected = total.guarantee(delta=1e-6, conversion=Conversion.CLASSIC)
    assert found["data_dependent"]["epsilon"] == expected.epsilon
    assert found["conversion"] == "classic"
    assert found["max_moment"] == 12


def test_confident_contract(report, votes):
    parameters = {"threshold": 200.0, "sigma1": 150.0, "sigma2": 40.0}
    flags = [item for name, value in parameters.items() for item in (f"--{name}", value)]
    found = report("confident", "--votes", votes, *flags, "--queries", 50, "--delta", 1e-5)
    for dependent, name in ((True, "data_dependent"), (False, "data_independent")):
        total = confident_total(COUNTS[:50], **parameters, data_dependent=dependent)
        assert found[name]["epsilon"] == total.guarantee(delta=1e-5).epsilon
        assert found[name]["publishable"] is False
    assert 0 < found["expected_answered"] < 50
    assert found["all_answered"]["publishable"] is True
    assert found["all_answered"]["epsilon"] > found["data_independent"]["epsilon"]

    planned = report("confident", *flags, "--queries", 50, "--answers", 20, "--delta", 1e-5)
    plan = [Repeated(ThresholdCheck(sigma=150.0), 50)]
    plan += [Repeated(GaussianNoisyMaxAnswer(sigma=40.0), 20)]
    assert planned["data_independent"]["epsilon"] == compose(plan).guarantee(delta=1e-5).epsilon
    assert planned["data_independent"]["publishable"] is True


def test_interactive(report, votes, tmp_path):
    np.save(tmp_path / "student.npy", np.full((60, 10), 0.1))
    np.save(tmp_path / "certain.npy", COUNTS / 250)
    flags = ["--threshold", 100, "--sigma1", 40, "--sigma2", 40, "--delta", 1e-5]
    unsure = report("confident", "--votes", votes, *flags, "--baseline", tmp_path / "student.npy")
    agreeing = report("confident", "--votes", votes, *flags, "--baseline", tmp_path / "certain.npy")
    assert unsure["expected_answered"] > 50 > 10 > agreeing["expected_answered"]


@pytest.mark.parametrize(
    ("accountant", "expected"),
    [("abadi", 1.2585747), ("moments", 1.0354900), ("pld", 0.9471993)],
)
def test_dpsgd_contract(report, accountant, expected):
    found = report(
        "dpsgd", "--sample-rate", 0.01, "--noise-multiplier", 4, "--steps", 10_000, "--delta", 1e-5,
        "--accountant", accountant,
    )  # fmt: skip
    assert found["epsilon"] == pytest.approx(expected, abs=1e-6)
    assert found["data_independent"]["epsilon"] == found["epsilon"]
    assert found["moment"] == {"abadi": 19, "moments": 16, "pld": None}[accountant]


@pytest.mark.parametrize("accountant", ["abadi", "moments"])
def test_dpsgd_calibration(report, accountant):
    flags = ["dpsgd", "--sample-rate", 0.01, "--delta", 1e-5, "--accountant", accountant]
    found = report(*flags, "--steps", 1000, "--target-epsilon", 2.0)
    assert found["found"] == "noise_multiplier"
    assert 2.0 * (1 - 1e-5) < found["epsilon"] <= 2.0
    back = report(*flags, "--noise-multiplier", found["noise_multiplier"], "--target-epsilon", 2.0)
    assert back["steps"] in (1000, 1001)


def test_noisy_max_calibration(report):
    found = report("lnmax", "--queries", 100, "--target-epsilon", 3.0, "--delta", 1e-5)
    assert found["data_independent"]["epsilon"] == pytest.approx(3.0, rel=1e-5)
    assert found["data_independent"]["epsilon"] <= 3.0
    again = report("lnmax", "--scale", found["scale"], "--target-epsilon", 3.0, "--delta", 1e-5)
    assert again["queries"] == 100


def test_plain_mechanisms(report):
    found = report("gaussian", "--sigma", 8, "--sensitivity", 2, "--queries", 4, "--delta", 1e-5)
    exact = gaussian_epsilon(2.0, delta=1e-5)
    assert exact <= found["data_independent"]["epsilon"] <= exact * (1 + 1e-8)
    assert found["data_independent"]["accountant"] == "gaussian"
    moments = compose([Repeated(Gaussian(noise_multiplier=4.0), 4)]).guarantee(delta=1e-5)
    assert exact < moments.epsilon
    found = report("laplace", "--scale", 10, "--delta", 1e-5)
    assert found["data_independent"]["epsilon"] <= 0.1


def test_labels(report, run, votes, tmp_path):
    labels = np.stack([np.repeat(np.arange(10), row) for row in COUNTS], axis=1)
    np.save(tmp_path / "labels.npy", labels)
    flags = ["--scale", 20, "--delta", 1e-5]
    by_counts = report("lnmax", "--votes", votes, *flags)
    by_labels = report(
        "lnmax", "--votes", tmp_path / "labels.npy", "--labels", "--classes", 10, *flags
    )
    assert by_labels["data_dependent"] == by_counts["data_dependent"]
    code, _, err = run("lnmax", "--votes", tmp_path / "labels.npy", "--labels", *flags)
    assert code == 0
    assert "10 classes, taken from the largest label" in err


def test_people_get_a_table(run, votes):
    code, out, _ = run("lnmax", "--votes", votes, "--scale", 20, "--delta", 1e-5)
    assert code == 0
    for text in ("data-independent", "may be published", "data-dependent", "do not publish"):
        assert text in out
    code, out, _ = run("dpsgd", "--sample-rate", 1, "--noise-multiplier", 4, "--steps", 1,
                       "--delta", 1e-5, "--accountant", "pld")  # fmt: skip
    assert code == 0
    assert "one record's contribution removed (zero-out; the number of records is public)" in out
    assert "added or removed where the sample rate does not depend on the number" in out


LNMAX = ["lnmax", "--delta", 1e-5]
DPSGD = ["dpsgd", "--delta", 1e-5, "--sample-rate", 0.01]
CHECKED = ["confident", "--delta", 1e-5, "--threshold", 200, "--sigma1", 150, "--sigma2", 40]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([*LNMAX, "--queries", 10], "--scale"),
        ([*LNMAX, "--scale", 20], "--queries"),
        ([*LNMAX], "--scale and --queries"),
        ([*LNMAX, "--scale", 20, "--queries", 10, "--target-epsilon", 1], "left open"),
        ([*LNMAX, "--target-epsilon", 1], "--scale or --queries"),
        ([*LNMAX, "--scale", 0.01, "--target-epsilon", 1], "not even one"),
        ([*LNMAX, "--scale", 0, "--queries", 10], "a number of votes between"),
        ([*LNMAX, "--scale", "nan", "--queries", 10], "a number of votes between"),
        ([*LNMAX, "--scale", 20, "--queries", 0], "--queries"),
        ([*LNMAX, "--scale", 20, "--queries", 10, "--labels"], "go with --votes"),
        ([*LNMAX, "--scale", 20, "--votes", "gone.npy"], "no vote file"),
        (["lnmax", "--delta", 0, "--scale", 20, "--queries", 9], "between 0 and 1"),
        (["lnmax", "--scale", 20, "--queries", 9], "--delta"),
        ([*LNMAX, "--scale", 20, "--queries", 9, "--conversion", "best"], "--conversion"),
        ([*LNMAX, "--scael", 20, "--queries", 9], "--scael"),
        ([*DPSGD, "--steps", 10], "--noise-multiplier"),
        ([*DPSGD, "--noise-multiplier", 1], "--steps"),
        ([*DPSGD, "--steps", 10, "--target-epsilon", -1], "above zero"),
        (["dpsgd", "--delta", 1e-5, "--sample-rate", 2, "--steps", 9, "--noise-multiplier", 1],
         "sample_rate"),
        ([*DPSGD, "--steps", 9, "--noise-multiplier", 1, "--accountant", "abadi",
          "--max-moment", 8], "do not go with"),
        ([*CHECKED], "--votes or --queries"),
        ([*CHECKED, "--queries", 5, "--answers", 6], "more than"),
        ([*CHECKED, "--queries", 5, "--baseline", "x.npy"], "--baseline goes with"),
        (["laplace", "--delta", 1e-5, "--scale", 1, "--sensitivity", 0], "--sensitivity"),
        (["laplace", "--delta", 1e-5, "--target-epsilon", 1, "--sensitivity", "inf"],
         "--sensitivity"),
        (["gaussian", "--delta", 1e-5, "--sigma", 1e200], "between"),
        ([*LNMAX, "--scale", 20, "--queries", 10**400], "a smaller whole number"),
        ([*LNMAX, "--scale", 20, "--queries", 9, "--max-moment", 10**11], "1000000"),
        ([*DPSGD, "--steps", 9, "--noise-multiplier", 0.001, "--accountant", "pld"], "below 0.05"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence_and_exit_code_two(run, arguments, text):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert text in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("table", "flags", "text"),
    [
        (np.array([[200, 50], [200, 49]]), [], "--abstentions"),
        (np.array([[200.5, 49.5]]), [], "fractions"),
        (np.array([[np.nan, 49.5]]), [], "NaN"),
        (np.array([[-1, 251]]), [], "negative"),
        (np.zeros((0, 10)), [], "empty"),
        (np.array([[{}, 1]], dtype=object), [], "pickled"),
        (np.ones((5, 5), dtype=int), [], "--counts or --labels"),
        (np.ones((5, 5), dtype=int), ["--counts", "--labels"], "contradict"),
        (COUNTS, ["--classes", 10], "--classes goes with --labels"),
        (COUNTS, ["--queries", 61], "asked for 61"),
    ],
)
def test_bad_votes_are_one_line_and_exit_code_two(run, tmp_path, table, flags, text):
    np.save(tmp_path / "bad.npy", table)
    code, out, err = run(*LNMAX, "--scale", 20, "--votes", tmp_path / "bad.npy", *flags)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1
    assert err.startswith("pate: ")


def test_hardly_any_noise_is_answered_too(report):
    found = report(*DPSGD, "--steps", 100, "--noise-multiplier", 0.001)
    assert found["epsilon"] > 1e6
    found = report("gaussian", "--delta", 1e-5, "--sigma", 1e-90)
    assert found["data_independent"]["epsilon"] > 1e100


def test_rows_that_are_all_the_same_are_pointed_out(run, tmp_path):
    np.save(tmp_path / "same.npy", np.tile([9, 9, 5], (50, 1)))
    code, _, err = run(*LNMAX, "--scale", 20, "--votes", tmp_path / "same.npy")
    assert code == 0
    assert "all 50 rows are the same" in err


def test_baselines_are_checked(run, votes, tmp_path):
    secret = np.full((60, 10), "secret-17")
    for table in (secret, np.full((60, 9), 0.1), np.full((60, 10), 0.2), np.full((60, 10), np.nan)):
        np.save(tmp_path / "student.npy", table)
        code, _, err = run(*CHECKED, "--votes", votes, "--baseline", tmp_path / "student.npy")
        assert code == 2
        assert "probabilit" in err
        assert "secret" not in err


def test_the_installed_commands_work():
    for command in (["pate", "--version"], ["pate", "--help"], ["dpsgd", "--help"]):
        run = subprocess.run(
            [sys.executable, "-m", command[0], *command[1:]], capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
    run = subprocess.run(
        [sys.executable, "-m", "dpsgd", "epsilon", "--sample-rate", "0.01", "--noise-multiplier",
         "4", "--steps", "10000", "--delta", "1e-5", "--accountant", "abadi"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "ε = 1.26 at δ = 1e-5 " in run.stdout  # 1.258574…, rounded up
    run = subprocess.run(
        [sys.executable, "-m", "dpsgd", "epsilon", "--sample-rate", "7", "--noise-multiplier", "4",
         "--steps", "1", "--delta", "1e-5"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr.startswith("dpsgd: sample_rate is 7.0")


def test_control_c_is_one_line():
    # The real command; its search prints when it begins, and would go on for an hour.
    program = """
import sys, time
from pate.accounting import calibrate
def search(*given, **named):
    print("searching", flush=True)
    time.sleep(3600)
calibrate.smallest_noise = search
from pate.cli import main
main()
"""
    command = [
        sys.executable, "-c", program, "epsilon", "dpsgd", "--sample-rate", "0.01", "--steps",
        "1000", "--target-epsilon", "2", "--delta", "1e-5",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "searching\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err.strip()) == (130, "", "pate: interrupted")


def test_gumbel_answers_cost_what_covers_any_order_unless_queries_are_said_to_be_fixed(run):
    words = ("gumbel", "--scale", "209", "--queries", "191", "--delta", "1e-5", "--json")
    stated = {}
    for flag in ([], ["--fixed-queries"]):
        code, out, _ = run(*words, *flag)
        assert code == 0
        report = json.loads(out)
        assert report.get("fixed_queries", False) == bool(flag)
        stated[bool(flag)] = report["data_independent"]
    assert stated[False]["accountant"] == "adaptive-bounded-range"
    assert stated[True]["accountant"] == "bounded-range"
    assert 0.2170 < stated[True]["epsilon"] < 0.2172 < 0.2173 < stated[False]["epsilon"] < 0.2175
    # The noise that is found keeps the figure that is stated.
    code, out, _ = run("gumbel", "--queries", "191", "--target-epsilon", "0.2172", *words[-3:])
    assert code == 0
    report = json.loads(out)
    assert report["scale"] > 209
    assert report["data_independent"]["epsilon"] <= 0.2172


def test_a_terminal_without_greek_letters_still_gets_its_table():
    command = [
        sys.executable, "-m", "pate", "epsilon", "lnmax", "--scale", "20", "--queries", "10",
        "--delta", "1e-5",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    run = subprocess.run(command, capture_output=True, env=environment)
    assert run.returncode == 0
    assert b"may be published" in run.stdout


@pytest.mark.campaign
def test_the_example_runs():
    example = Path(__file__).parents[2] / "examples" / "calculator.py"
    run = subprocess.run([sys.executable, example], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("$ pate epsilon") == 3
    assert "private: do not publish" in run.stdout
