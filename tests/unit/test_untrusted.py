"""The one guard around code that is not ours."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from pate.errors import InvalidInput, TeacherError
from pate.partition import PartitionSpec, partition
from pate.untrusted import (
    DEBUG,
    ProcessExit,
    contained,
    describe_error,
    forbid_exit,
    is_own,
    make_untrusted,
    run_untrusted,
)

SECRET = "Ada Lovelace"


def run(call, **more):
    return run_untrusted("fit", call, **({"private": True, "error": TeacherError} | more))


def raising(error):
    def call():
        raise error

    return call


def ours():
    """An error that our own code raises for a reason of its own."""
    partition(["a"], teachers=2, spec=PartitionSpec(method="shuffle"))


@pytest.mark.parametrize(
    "kind", [ValueError, InvalidInput, SystemExit, GeneratorExit, BaseException, MemoryError]
)
def test_type_and_place_and_not_the_text(kind):
    with pytest.raises(
        TeacherError, match=rf"^fit raised {kind.__name__} in unit/test_unt"
    ) as told:
        run(raising(kind(SECRET)))
    assert SECRET not in str(told.value)
    assert told.value.__cause__ is None
    assert told.value.__context__ is None


def test_the_text_where_nothing_is_private():
    with pytest.raises(TeacherError, match=SECRET):
        run(raising(ValueError(f"{SECRET}\nand more")), private=False)
    with pytest.raises(InvalidInput, match=f"it cannot be made: ValueError: {SECRET}$"):
        make_untrusted("it cannot be made", raising(ValueError(SECRET)), error=InvalidInput)


def test_an_exception_that_cannot_even_be_shown():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError(SECRET)

    with pytest.raises(TeacherError, match=r"fit raised Mute in unit/test_untrusted.py line \d+$"):
        run(raising(Mute()), private=False)


def test_an_error_of_ours_keeps_its_words_unless_the_users_code_was_in_between():
    with pytest.raises(InvalidInput) as told:
        partition(["a"], teachers=2, spec=PartitionSpec(method="shuffle"))
    error = told.value.with_traceback(told.tb.tb_next)  # without this very file
    assert is_own(error)
    assert describe_error(error).startswith("InvalidInput: 2 teachers are more than")
    with pytest.raises(TeacherError, match=r"fit raised InvalidInput in unit/test_untrusted\.py"):
        run(ours)


def test_ctrl_c_passes_and_what_only_looks_like_it_does_not():
    with pytest.raises(KeyboardInterrupt):
        run(raising(KeyboardInterrupt()))
    with pytest.raises(TeacherError, match="fit raised Mine"):
        run(raising(type("Mine", (KeyboardInterrupt,), {})(SECRET)))


def test_the_owner_sees_it(monkeypatch):
    monkeypatch.setenv(DEBUG, "1")
    with pytest.raises(TeacherError, match=f"fit raised ValueError in .*: {SECRET}\nTraceback"):
        run(raising(ValueError(SECRET)))
    assert SECRET in describe_error(ValueError(SECRET))


def test_prints_are_dropped_and_ours_are_heard(capfd):
    with contained() as unsilenced:
        print(SECRET)
        os.write(2, SECRET.encode())
        with unsilenced():
            print("step 1")
            os.write(2, b"by C")
        print(SECRET)
    print("after")
    assert capfd.readouterr() == ("step 1\nafter\n", "by C")


def test_numpy_is_as_it_was():
    before = np.geterr()
    with pytest.raises(TeacherError):
        run(lambda: np.seterr(all="raise") and np.float64(1) / 0)
    assert np.geterr() == before


def test_numpy_that_is_loaded_inside_begins_as_usual():
    code = (
        "import sys\n"
        "from pate.errors import PateError\n"
        "from pate.untrusted import run_untrusted\n"
        "assert 'numpy' not in sys.modules\n"
        "def call():\n"
        "    import numpy\n"
        "    numpy.seterr(all='raise')\n"
        "run_untrusted('fit', call, private=True, error=PateError)\n"
        "import numpy\n"
        "print(sorted(numpy.geterr().values()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['ignore', 'warn', 'warn', 'warn']\n"


def test_nobody_ends_a_command_early_but_a_fork_may_end():
    with forbid_exit():
        with pytest.raises(ProcessExit):
            os._exit(0)
        child = os.fork()
        if not child:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
