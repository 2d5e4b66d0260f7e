"""PATEClassifier: scikit-learn's contract, what it costs, and what it refuses."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator

import pate
from pate._format import format_epsilon
from pate.accounting import compose
from pate.accounting.guarantee import Neighbours
from pate.accounting.ledger.data_set import Coverage
from pate.errors import BudgetExceeded, InvalidInput, TeacherError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3))
Y = np.where(X.sum(axis=1) > 0, "yes", "no")
U = RNG.normal(size=(80, 3))


def quick(**settings):
    return pate.PATEClassifier(
        **{"teachers": 20, "epsilon": 5.0, "random_state": 0, "insecure_seed": 0} | settings
    )


class WithPublic(pate.PATEClassifier):
    """Supplies ``public=X``, which scikit-learn's checks do not know of. For these checks only."""

    def fit(self, X, y, public=None, groups=None, ledger=None):
        given = {"groups": groups, "ledger": ledger, "accept_overlap": True}
        return super().fit(X, y, public=X, **given)


# Checks that cannot hold, and why.
EXEMPT: dict[str, str] = {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_scikit_learns_own_checks_pass():
    clf = WithPublic(teachers=5, epsilon=200.0, random_state=0, insecure_seed=0)
    results = check_estimator(clf, expected_failed_checks=EXEMPT, on_fail=None)
    failed = {
        r["check_name"]: repr(r["exception"])[:300] for r in results if r["status"] == "failed"
    }
    assert failed == {}
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(EXEMPT)
    assert sum(r["status"] == "passed" for r in results) > 40


def test_it_works_in_a_pipeline_and_is_cloned():
    clf = quick(teacher=DecisionTreeClassifier(max_depth=2), student=LogisticRegression())
    copied = clone(clf).set_params(teachers=30, teacher__max_depth=3)
    assert copied.get_params()["teacher__max_depth"] == 3
    whole = make_pipeline(StandardScaler(), copied)
    whole.fit(X, Y, pateclassifier__public=U)
    assert whole.score(X, Y) > 0.7
    assert list(whole.classes_) == ["no", "yes"]


def test_what_is_kept_is_released_and_may_be_stored():
    clf = quick().fit(X, Y, public=U)
    again = pickle.loads(pickle.dumps(clf))
    assert (again.predict(U) == clf.predict(U)).all()
    assert not any(isinstance(value, pate.Ensemble | pate.Votes) for value in vars(clf).values())
    assert len(clf.labels_) == len(clf.labelled_) == clf.plan_.answers
    assert set(clf.labels_) <= set(clf.classes_)


def test_the_guarantee_is_the_plans():
    clf = pate.PATEClassifier(teachers=20, epsilon=2.0, queries=30, classes=["no", "yes"])
    stated = clf.fit(X, Y, public=U).guarantee_
    priced = compose(clf.mechanism_.caps(queries=30, answers=30)).guarantee(delta=1e-5)
    assert stated.epsilon == priced.epsilon <= 2.0
    assert stated.neighbours is Neighbours.ADD_REMOVE
    assert not stated.data_dependent
    assert stated.publishable
    assert any("no ledger" in note for note in stated.notes)
    assert clf.protects_ == "one record added or removed"


def test_classes_that_are_read_from_private_labels_are_a_caveat():
    stated = pate.PATEClassifier(teachers=20, epsilon=2.0).fit(X, Y, public=U).guarantee_
    assert not stated.publishable
    assert "classes=" in stated.caveats[0]


def test_seeded_noise_is_marked():
    stated = quick(classes=["no", "yes"]).fit(X, Y, public=U).guarantee_
    assert not stated.publishable
    assert "not private" in stated.caveats[0]


def test_random_state_never_seeds_the_noise():
    def labels():
        clf = pate.PATEClassifier(teachers=20, epsilon=0.5, queries=60, random_state=0)
        return clf.fit(X, Y, public=U).labels_

    assert (labels() != labels()).any()
    assert (quick().fit(X, Y, public=U).labels_ == quick().fit(X, Y, public=U).labels_).all()


def test_the_number_of_processes_changes_nothing():
    one = quick(teachers=40).fit(X, Y, public=U)
    two = quick(teachers=40, n_jobs=2).fit(X, Y, public=U)
    assert (one.labels_ == two.labels_).all()
    assert (one.predict(X) == two.predict(X)).all()


def test_groups_protect_persons():
    people = np.arange(len(X)) // 3
    clf = quick().fit(X, Y, public=U, groups=people)
    assert "user" in clf.protects_
    assert clf.guarantee_.neighbours is Neighbours.USER_ADD_REMOVE
    assert "one record" not in clf.guarantee_._repr_html_()
    with pytest.raises(InvalidInput, match="groups hold"):
        quick().fit(X, Y, public=U, groups=people[1:])


# --- the ledger -----------------------------------------------------------------------------------


def test_each_fit_is_charged_before_its_labels_are_drawn(tmp_path):
    book = tmp_path / "patients.ledger"
    clf = pate.PATEClassifier(teachers=20, epsilon=2.0)
    clf.fit(X, Y, public=U, ledger=book)
    clf.fit(X, Y, public=U, ledger=book)
    assert not any("no ledger" in note for note in clf.guarantee_.notes)
    with pate.Ledger.open(book) as ledger:
        first, second = ledger.charges()
        assert first.events == second.events == clf.plan_.events
        assert first.release != second.release
        assert first.records is Neighbours.ADD_REMOVE
    assert (book.stat().st_mode & 0o077) == 0


def test_a_budget_is_kept_and_a_refusal_costs_nothing(tmp_path, monkeypatch):
    book = tmp_path / "patients.ledger"
    budget = pate.Guarantee(epsilon=2.4, delta=1e-5)
    clf = pate.PATEClassifier(teachers=20, epsilon=1.5)
    with pate.Ledger.open(book, budget=budget) as ledger:
        clf.fit(X, Y, public=U, ledger=ledger)
        labels = clf.labels_
        refused = clone(clf).set_params(epsilon=3.0)
        monkeypatch.setattr("pate.estimator.train_teachers", None)  # refused before any training
        with pytest.raises(BudgetExceeded, match="nothing was charged"):
            refused.fit(X, Y, public=U, ledger=ledger)
        assert len(ledger.charges()) == 1
    assert not hasattr(refused, "labels_")
    assert (clf.labels_ == labels).all()


def test_a_failure_after_the_charge_leaves_it_spent(tmp_path, monkeypatch):
    """A charge that bought nothing is the safe side: noise that was drawn cannot be unseen."""
    book = tmp_path / "patients.ledger"

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pate.mechanisms.GaussianNoisyMax.release", killed)
    clf = pate.PATEClassifier(teachers=20)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, Y, public=U, ledger=book)
    assert not hasattr(clf, "labels_")
    with pate.Ledger.open(book) as ledger:
        assert len(ledger.charges()) == 1


# --- models and records ---------------------------------------------------------------------------


class Majority:
    """A teacher that is nobody's subclass."""

    def fit(self, X, y):
        self.label = np.bincount(y).argmax()

    def predict(self, X):
        return np.full(len(X), self.label)


@pytest.mark.parametrize(
    "teacher", ["logistic", DecisionTreeClassifier, DecisionTreeClassifier(max_depth=2), Majority,
                Majority()]
)  # fmt: skip
def test_any_model_is_a_teacher(teacher):
    clf = quick(teacher=teacher).fit(X, Y, public=U)
    assert set(clf.predict(U)) <= {"no", "yes"}


def test_torch_modules_teach_and_learn():
    torch = pytest.importorskip("torch")
    settings = {"epochs": 2}
    clf = quick(
        teachers=4,
        epsilon=50.0,
        teacher=torch.nn.Linear(3, 2),
        student=torch.nn.Linear(3, 2),
        teacher_params=settings,
        student_params=settings,
    )
    assert clf.fit(X, Y, public=U).predict_proba(U).shape == (len(U), 2)


def test_a_student_without_probabilities_offers_none():
    from sklearn.svm import LinearSVC

    clf = quick(student=LinearSVC()).fit(X, Y, public=U)
    assert not hasattr(clf, "predict_proba")
    assert hasattr(quick().fit(X, Y, public=U), "predict_proba")


class Frame:
    """As much of a pandas DataFrame as is used: this environment may have no pandas."""

    def __init__(self, data, columns):
        self.data, self.columns = np.asarray(data, dtype=object), list(columns)

    dtypes = property(lambda self: [np.dtype(object), np.dtype(float)])
    iloc = property(lambda self: self)
    shape = property(lambda self: self.data.shape)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, rows):
        return Frame(self.data[rows], self.columns)

    def __array__(self, dtype=None, copy=None):
        return self.data if dtype is None else self.data.astype(dtype)

    def astype(self, kinds):
        assert list(kinds) == self.columns
        return self


class ByName(LogisticRegression):
    """An estimator that needs names of columns."""

    def _numbers(self, X):
        assert isinstance(X, Frame)
        assert X.columns == ["job", "age"]
        return np.column_stack([X.data[:, 0] == "nurse", X.data[:, 1].astype(float)])

    def fit(self, X, y):
        return super().fit(self._numbers(X), y)

    def predict(self, X):
        return super().predict(self._numbers(X))

    def predict_proba(self, X):
        return super().predict_proba(self._numbers(X))


def mixed(rows):
    jobs = np.where(RNG.random(rows) < 0.5, "nurse", "clerk")
    data = np.empty((rows, 2), dtype=object)
    data[:, 0], data[:, 1] = jobs, RNG.normal(size=rows)
    return Frame(data, ["job", "age"]), (jobs == "nurse").astype(int)


def test_mixed_columns_reach_estimators_as_a_frame():
    (frame, labels), (public, _) = mixed(300), mixed(60)
    clf = quick(teacher=ByName(), student=ByName()).fit(frame, labels, public=public)
    assert (clf.predict(frame) == labels).mean() > 0.9
    assert clf.predict_proba(public).shape == (60, 2)
    with pytest.raises(InvalidInput, match="takes numbers only"):
        quick(teacher="ridge", student=ByName()).fit(frame, labels, public=public)


def test_frames_of_pandas_are_taken():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"job": np.where(Y == "yes", "nurse", "clerk"), "age": X[:, 0]})
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder

    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["job"]))
    model = make_pipeline(columns, LogisticRegression())
    fitted = quick(teacher=model, student=model)
    with pytest.raises(InvalidInput, match=r"^80 of 80 public inputs are among"):
        fitted.fit(frame, Y, public=frame[:80])
    clf = fitted.fit(frame, Y, public=frame[:80], accept_overlap=True)
    assert clf.score(frame, Y) > 0.9


def test_a_teacher_that_fails_abstains_only_if_asked():
    class Picky(Majority):
        def fit(self, X, y):
            if len(X) < 30:
                raise ValueError(f"too few, such as {X[0]}")
            super().fit(X, y)

    with pytest.raises(TeacherError, match="failed") as caught:
        quick(teacher=Picky).fit(X, Y, public=U)
    assert str(X[0][0])[:6] not in str(caught.value)
    quick(teacher=Picky, on_error="abstain").fit(X, Y, public=U)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({}, {"public": None}, "fit needs public="),
        ({}, {"public": U[:, :2]}, "public has records of shape"),
        ({}, {"public": np.vstack([U, X[7:10]])}, "^3 of .* public inputs are among the private"),
        ({}, {"public": X[:5].astype(np.float32)}, "^5 of 5 .* give accept_overlap=True"),
        ({}, {"y": X[:, 0]}, "Unknown label type"),
        ({}, {"y": Y[:-1]}, "inconsistent numbers of samples"),
        ({}, {"y": np.full(len(X), "yes")}, "1 class"),
        ({"classes": ["yes", "maybe"]}, {}, "not among the given classes"),
        ({"epsilon": 0.0}, {}, "above zero"),
        ({"epsilon": 1e-12}, {}, "which hides the votes of 20 teachers"),
        ({"noise": 0.5, "epsilon": 0.1}, {}, "costs ε"),
        ({"epsilon": None}, {}, "give epsilon= or noise="),
        ({"delta": 1.0}, {}, "delta is 1.0"),
        ({"mechanism": "confident"}, {}, "ConfidentGnmax"),
        ({"mechanism": pate.LaplaceNoisyMax(scale=20.0), "noise": 3.0}, {}, "its own noise"),
        ({"teachers": 1}, {}, "2 or more"),
        ({"teacher": "rigde"}, {}, "rigde"),
        ({"teacher": 7}, {}, "not int"),
        ({"teacher_params": {"epoch": 3}}, {}, "epoch"),
        ({"student": "self-trainig"}, {}, "self-trainig"),
        ({"student_params": {"round": 3}}, {}, "round"),
        ({"queries": 0}, {}, "1 or more"),
        ({"on_error": "ignore"}, {}, "'raise' or 'abstain'"),
        ({}, {"ledger": "x.ledger"}, "no ledger covers it"),
    ],
)
def test_refusals_are_one_sentence(settings, given, words):
    arguments = {"X": X, "y": Y, "public": U} | given
    with pytest.raises((ValueError, BudgetExceeded), match=words) as caught:
        quick(**settings).fit(**arguments)
    assert "\n" not in str(caught.value)


def test_more_teachers_than_records_is_a_warning():
    """No refusal: whether one record is there must not decide whether something is released."""
    with pytest.warns(UserWarning, match="more than the records"):
        quick(teachers=50).fit(X[:40], Y[:40], public=U)


def test_the_page_holds_what_is_released(tmp_path):
    clf = quick(classes=["no", "yes", "<b>"]).fit(X, Y, public=U)
    page = clf.report(tmp_path / "page.html").read_text()
    assert clf.guarantee_.epsilon < 5
    assert f"ε = {format_epsilon(clf.guarantee_.epsilon)}" in page
    assert "not private" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    with pytest.raises(InvalidInput, match="cannot write"):
        clf.report(tmp_path / "nowhere" / "page.html")


def test_the_estimator_is_loaded_when_it_is_used():
    assert "sklearn" in sys.modules  # here; that `import pate` loads none is in test_project.py
    assert pate.PATEClassifier.__module__ == "pate.estimator"


# --- record votes ---------------------------------------------------------------------------------


def noised(groups, points=X[:40], labels=Y[:40], **given):
    """The table with the same noise each time: tables differ by the votes alone."""
    clf = quick(votes="records", classes=["no", "yes"], student="supervised")
    return clf.fit(points, labels, public=U, groups=groups, **given).table_.counts


def test_one_more_user_is_one_vote_more_whatever_their_name():
    people = [n // 2 if n % 2 else float(n // 2) for n in range(40)]  # 1 and 1.0 are one person
    whole = noised(people)
    assert (whole == noised(np.array(people))).all()
    more = noised([*people, "new"], X[:41], Y[:41])
    assert np.abs(more - whole).sum() == 1
    with pytest.raises(InvalidInput, match="missing"):
        noised([None, *people[1:]])


@pytest.mark.parametrize("votes", ["records", "teachers"])
def test_only_named_groups_are_the_same_persons_in_a_ledger(votes, tmp_path):
    pandas = pytest.importorskip("pandas")
    given = {"epsilon": None, "noise": 400.0, "queries": 5, "student": "supervised"}
    if votes == "records":
        given = {"votes": votes, "classes": ["no", "yes"], "student": "supervised"}
    people = np.arange(600) // 3
    for name, groups in (("named", pandas.Series(people, name="person")), ("arrays", people)):
        path = tmp_path / f"{name}.ledger"
        for _ in range(2):
            quick(insecure_seed=None, **given).fit(X, Y, public=U, groups=groups, ledger=path)
        with pate.Ledger.open(path) as ledger:
            assert ledger.coverage() is (Coverage.USER if name == "named" else Coverage.MIXED)
