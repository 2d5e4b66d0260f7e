"""The estimators: refusals, scikit-learn's manners, what they publish, and how well they learn."""

from __future__ import annotations

import math
import subprocess
import sys
import traceback
from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpsgd.convex import (
    Hinge,
    Huber,
    Logistic,
    NoisyGradientDescent,
    NoisyLeastSquares,
    ObjectivePerturbation,
    OutputPerturbation,
)
from dpsgd.convex.descent import projected
from dpsgd.convex.estimator import rounded, scaled_rows
from pate.accounting import (
    ApproximateDP,
    Gaussian,
    Neighbours,
    PureDP,
    Repeated,
    SampledGaussian,
    compose,
)
from pate.accounting.composition import basic, gaussian_epsilon
from pate.accounting.events import ForReplacement
from pate.errors import ConditionsFail, InvalidInput, PateError

RNG = np.random.default_rng(0)
X = scaled_rows(RNG.normal(size=(300, 3)), 1.0)
Y = (X @ [1.0, -2.0, 0.5] > 0).astype(int)

PERTURBATIONS = [OutputPerturbation, ObjectivePerturbation]
ALL = [*PERTURBATIONS, NoisyGradientDescent]  # with a loss
EVERY = [*ALL, NoisyLeastSquares]


def make(kind, **given):
    """An estimator that would fit, but for what is given."""
    usual = {"classes": [0, 1]}
    if kind is NoisyGradientDescent:
        usual |= {"records": 300, "delta": 1e-5}
    return kind(**usual | given)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"epsilon": -1.0}, "epsilon is -1.0"),
        ({"epsilon": math.inf}, "epsilon is inf"),
        ({"epsilon": math.nan}, "epsilon is nan"),
        ({"epsilon": True}, "epsilon is True"),
        ({"epsilon": "1"}, "epsilon is '1'"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"delta": -1e-9}, "delta is -1e-09"),
        ({"delta": math.nan}, "delta is nan"),
        ({"regularisation": -0.1}, "regularisation is -0.1"),
        ({"regularisation": math.inf}, "regularisation is inf"),
        ({"data_norm": 0.0}, "data_norm is 0.0"),
        ({"intercept_scaling": 0.0}, "intercept_scaling is 0.0"),
        ({"classes": None}, "classes is not given"),
        ({"classes": [0]}, "two or more"),
        ({"classes": [0, 0, 1]}, "two or more"),
        ({"classes": [0, 2]}, "not among the classes"),
        ({"classes": ["a", "b"]}, "not among the classes"),
        ({"loss": "square"}, "the loss is 'square'"),
        ({"loss": 3}, "declares no convex"),
        ({"data_norm": 0.1}, "longer than data_norm = 0.1"),
        ({"insecure_seed": -1}, "insecure seed"),
    ],
)
def test_parameters_are_refused(kind, given, words):
    with pytest.raises(InvalidInput, match=words):
        make(kind, **given).fit(X, Y)


@pytest.mark.parametrize("kind", PERTURBATIONS)
def test_perturbation_needs_regularisation(kind):
    with pytest.raises(InvalidInput, match="regularisation is 0"):
        make(kind, regularisation=0.0).fit(X, Y)


@pytest.mark.parametrize("kind", PERTURBATIONS)
@pytest.mark.parametrize("loss", ["hinge", Hinge()])
def test_perturbation_refuses_the_plain_hinge_and_says_why(kind, loss):
    with pytest.raises(ConditionsFail, match=r"jumps.*'huber'"):
        make(kind, loss=loss).fit(X, Y)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"delta": 0.0}, "delta is 0.0"),
        ({"records": None}, "records is not given"),
        ({"records": 0}, "records is 0"),
        ({"records": 3.5}, "records is 3.5"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": True}, "steps is True"),
        ({"radius": 0.0}, "radius is 0.0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"iterate": "best"}, "iterate is 'best'"),
    ],
)
def test_descent_refuses(given, words):
    with pytest.raises(InvalidInput, match=words):
        make(NoisyGradientDescent, **given).fit(X, Y)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [False, True])
def test_a_row_that_is_not_finite_is_refused_and_not_named(kind, value, clip):
    rows = X.copy()
    rows[217, 1] = value
    with pytest.raises(InvalidInput, match="not finite") as refused:
        make(kind, clip_rows=clip).fit(rows, Y)
    assert "217" not in str(refused.value)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (X[:, 0], Y),
        (X[:0], Y[:0]),
        (X, Y[:-1]),
        ([["a"], ["b"]], [0, 1]),
        (X[None], Y),
        (X + 1j, Y),
        (X.astype("datetime64[s]"), Y),
        (np.ma.masked_array(X, mask=X > 0), Y),
        ([[1, 2], [3]], [0, 1]),
        ([[10**400]], [0]),
        (X, np.ma.masked_array(Y, mask=Y > 0)),
        (X[:2], [[1], [1, 2]]),
    ],
)
def test_data_of_the_wrong_shape_is_refused(kind, rows, labels):
    with pytest.raises(InvalidInput):
        make(kind).fit(rows, labels)


@pytest.mark.parametrize("kind", EVERY)
def test_a_cell_or_label_that_does_not_belong_is_not_quoted(kind):
    rows = X.astype(object)
    rows[3, 1] = "HIV+"
    words = np.where(Y == 1, "yes", "no").astype(object)
    strange = [None, math.nan, 7, "HIV+", ["HIV+"]]
    cases = [({"classes": [0, 1]}, rows, Y)]
    for label in strange:
        labels = words.copy()
        labels[2] = label
        cases.append(({"classes": ["no", "yes"]}, X, labels))
    for given, table, labels in cases:
        with pytest.raises(InvalidInput) as refused:
            make(kind, **given).fit(table, labels)
        shown = "".join(traceback.format_exception(refused.value))
        assert "HIV+" not in shown


@pytest.mark.parametrize("kind", EVERY)
def test_labels_may_be_objects(kind):
    plain = make(kind, insecure_seed=2).fit(X, Y)
    objects = make(kind, insecure_seed=2).fit(X, Y.astype(object))
    np.testing.assert_array_equal(plain.coef_, objects.coef_)
    words = np.where(Y == 1, "yes", "no").astype(object)
    for classes in (["no", "yes"], np.array(["yes", "no"], dtype=object)):
        named = make(kind, insecure_seed=2, classes=classes).fit(X, words)
        np.testing.assert_array_equal(plain.coef_, named.coef_)
        assert set(named.predict(X)) <= {"no", "yes"}


@pytest.mark.parametrize("classes", [[None, "a"], [0.0, math.nan], [[0], [0, 1]], {0, 1}, 2])
def test_classes_that_are_no_labels_are_refused(classes):
    if isinstance(classes, list) and None in classes:
        classes = np.array(classes, dtype=object)
    with pytest.raises(InvalidInput, match="classes"):
        make(OutputPerturbation, classes=classes).fit(X, Y)


# --- kinds of numbers ---------------------------------------------------------------------------

NUMBERS = [np.float16, np.float32, np.float64]


def same_model(one, other):
    assert one.guarantee_ == other.guarantee_
    assert one.calibration_ == other.calibration_
    assert one.events_ == other.events_
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.intercept_, other.intercept_)
    np.testing.assert_array_equal(one.decision_function(X), other.decision_function(X))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("kind", "pure"),
    [(OutputPerturbation, True), (OutputPerturbation, False), (ObjectivePerturbation, True),
     (ObjectivePerturbation, False), (NoisyGradientDescent, False)],
)  # fmt: skip
def test_numbers_of_numpy_give_what_the_python_number_gives(kind, pure, number):
    given = {"epsilon": 0.01, "regularisation": 0.003, "data_norm": 1.3, "intercept_scaling": 0.7}
    if not pure:
        given["delta"] = 1e-5
    if kind is NoisyGradientDescent:
        given |= {"radius": 3.1, "learning_rate": 0.3}
    if kind is NoisyLeastSquares:
        del given["regularisation"]
        given |= {"share": 0.4, "ridge": 0.7}
    numpys = {name: number(value) for name, value in given.items()}
    pythons = {name: float(value) for name, value in numpys.items()}
    if kind is NoisyGradientDescent:
        numpys |= {"steps": np.int64(7), "records": np.int32(300)}
        pythons |= {"steps": 7, "records": 300}
    one, other = (make(kind, insecure_seed=3, clip_rows=True, **g) for g in (numpys, pythons))
    same_model(one.fit(X, Y), other.fit(X, Y))
    assert type(one.guarantee_.epsilon) is float
    assert one.get_params()["epsilon"] is numpys["epsilon"]  # as given: clone relies on it


@pytest.mark.parametrize("kind", ALL)
def test_whole_numbers_and_losses_of_numpy(kind):
    one, other = (make(kind, epsilon=e, insecure_seed=3).fit(X, Y) for e in (np.int64(2), 2))
    same_model(one, other)
    losses = (Own(lipschitz=np.float16(1), smoothness=np.float32(0.25)), Own())
    one, other = (make(kind, loss=loss, insecure_seed=3).fit(X, Y) for loss in losses)
    same_model(one, other)
    assert type(Huber(width=np.float16(0.1)).smoothness) is float


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", ["epsilon", "data_norm", "intercept_scaling", "regularisation"])
@pytest.mark.parametrize("value", [1e-101, 1e101, 10**400])
def test_extreme_numbers_are_refused(kind, name, value):
    with pytest.raises(InvalidInput, match=f"{name} is"):
        make(kind, **{name: value}).fit(X, Y)


@pytest.mark.parametrize("value", [1e-101, 1e101])
def test_extreme_steps_are_refused(value):
    for name in ("radius", "learning_rate"):
        with pytest.raises(InvalidInput, match=f"{name} is"):
            make(NoisyGradientDescent, **{name: value}).fit(X, Y)
    with pytest.raises(InvalidInput, match="lower learning_rate"):
        make(NoisyGradientDescent, learning_rate=1e100, data_norm=1e100).fit(X, Y)
    with pytest.raises(InvalidInput, match="records is above"):
        make(NoisyGradientDescent, records=10**400).fit(X, Y)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.campaign
def test_at_the_ends_of_what_is_allowed_weights_are_finite_or_refused(kind):
    for name in ("epsilon", "data_norm", "intercept_scaling", "regularisation"):
        for value in (1e-100, 1e100):
            try:
                fitted = make(kind, clip_rows=True, **{name: value}).fit(X, Y)
            except PateError:
                continue
            assert np.isfinite(fitted.coef_).all()


def test_the_far_end_of_rounding():
    assert rounded(np.array([1e300, 3.0]), spread=1e-290).tolist() == [1e300, 3.0]
    for spread in (0.0, math.inf, math.nan, 1e-320):
        with pytest.raises(InvalidInput, match="less extreme"):
            rounded(np.ones(2), spread=spread)


def test_projection_survives_squares_that_are_no_numbers():
    np.testing.assert_allclose(projected(np.array([[3e200, 4e200]]), 5.0), [[3.0, 4.0]])
    assert projected(np.zeros((1, 2)), 1.0).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("kind", PERTURBATIONS)
def test_gaussian_noise_below_the_smallest_epsilon_is_refused(kind):
    with pytest.raises(InvalidInput, match="epsilon"):
        make(kind, epsilon=9e-7, delta=1e-5).fit(X, Y)
    make(kind, epsilon=9e-7).fit(X, Y)  # pure noise has no such limit


@dataclass(frozen=True)
class Own:
    """A loss of the user's: logistic, with its promises free to break."""

    convex: bool = True
    lipschitz: float = 1.0
    smoothness: float = 0.25
    bend: float = 1.0
    sign: float = 1.0

    def derivative(self, margins):
        return self.sign * Logistic().derivative(self.bend * margins)

    def curvature(self, margins):
        return self.bend * Logistic().curvature(self.bend * margins)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (Own(convex=False), "convex"),
        (Own(lipschitz=math.inf), "lipschitz inf"),
        (Own(lipschitz=0.5), "leaves"),
        (Own(sign=-1.0), "leaves"),
        (Own(bend=-1.0), "not convex"),
        (Own(smoothness=0.1), "curvature"),
        (Own(bend=3.0), "curvature"),
        (Own(smoothness=math.inf), "jumps"),
        (Own(sign=math.nan), "not a finite number"),
    ],
)
def test_a_loss_that_breaks_its_promises_is_refused(own, words):
    with pytest.raises(ConditionsFail, match=words):
        make(ObjectivePerturbation, loss=own).fit(X, Y)


def test_a_loss_of_ones_own_learns_what_the_built_in_learns():
    for kind in ALL:
        own, built_in = (
            make(kind, loss=loss, insecure_seed=4).fit(X, Y).coef_ for loss in (Own(), "logistic")
        )
        np.testing.assert_array_equal(own, built_in)


def test_a_model_that_is_not_fitted_or_gets_other_features_refuses():
    with pytest.raises(InvalidInput, match="not fitted"):
        make(OutputPerturbation).predict(X)
    with pytest.raises(InvalidInput, match="2 features"):
        make(OutputPerturbation).fit(X, Y).predict(X[:, :2])


# --- rows and the intercept ----------------------------------------------------------------------


def test_long_rows_are_scaled_one_by_one_when_asked():
    far = X.copy()
    far[0] *= 1e200
    kept = make(OutputPerturbation, clip_rows=True, insecure_seed=1).fit(far, Y)
    near = X.copy()
    near[0] /= np.linalg.norm(near[0])
    same = make(OutputPerturbation, insecure_seed=1).fit(near, Y)
    np.testing.assert_allclose(kept.coef_, same.coef_, atol=1e-6)
    np.testing.assert_array_equal(kept.predict(far), same.predict(near))


def test_rounding_does_not_push_a_unit_row_over_the_bound():
    rows = RNG.normal(size=(2000, 7))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.linalg.norm(rows, axis=1).max() > 1
    make(OutputPerturbation).fit(rows, (rows[:, 0] > 0).astype(int))
    with pytest.raises(InvalidInput, match="longer"):
        make(OutputPerturbation).fit(rows * (1 + 1e-8), (rows[:, 0] > 0).astype(int))


def test_the_intercept_counts_in_the_norm_and_is_used():
    free = make(OutputPerturbation, fit_intercept=False).fit(X, Y)
    bound = make(OutputPerturbation, intercept_scaling=math.sqrt(3)).fit(X, Y)
    assert bound.calibration_.sensitivity == pytest.approx(2 * free.calibration_.sensitivity)
    assert free.intercept_.tolist() == [0.0]
    for scaling in (1.0, 3.0):
        shifted = make(
            OutputPerturbation, epsilon=1e6, regularisation=1e-4, intercept_scaling=scaling
        ).fit(X, (X[:, 0] > 0.3).astype(int))
        assert -shifted.intercept_[0] / shifted.coef_[0, 0] == pytest.approx(0.3, abs=0.05)


# --- scikit-learn's manners ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_parameters_are_got_set_and_cloned(kind):
    model = make(kind, epsilon=2.5, loss=Huber(width=0.2))
    assert model.get_params()["epsilon"] == 2.5
    copy = clone(model)
    assert copy is not model
    assert repr(copy.get_params()) == repr(model.get_params())
    assert not hasattr(clone(model.fit(X, Y)), "coef_")
    assert copy.set_params(epsilon=7.0).epsilon == 7.0
    with pytest.raises(ValueError, match="sigma"):
        copy.set_params(sigma=1.0)


@pytest.mark.parametrize("kind", EVERY)
def test_they_work_in_pipelines_and_folds(kind):
    line = make_pipeline(FunctionTransformer(lambda x: x / 2), make(kind, epsilon=50.0))
    assert cross_val_score(line, X, Y, cv=3).mean() > 0.8


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("classes", [["no", "yes"], ["a", "b", "c"]])
def test_labels_shapes_and_probabilities(kind, classes):
    labels = np.array(classes)[np.digitize(X[:, 0], [0.0, 0.4][: len(classes) - 1])]
    model = make(kind, classes=classes[::-1], epsilon=1e4).fit(X, labels)
    outputs = 1 if len(classes) == 2 else 3
    assert model.coef_.shape == (outputs, 3)
    assert model.intercept_.shape == (outputs,)
    assert model.classes_.tolist() == classes
    assert model.decision_function(X).shape == ((300,) if outputs == 1 else (300, 3))
    chances = model.predict_proba(X)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    np.testing.assert_array_equal(model.classes_[chances.argmax(axis=1)], model.predict(X))
    assert model.score(X, labels) > 0.7


def test_only_the_logistic_loss_has_probabilities():
    assert hasattr(make(OutputPerturbation), "predict_proba")
    assert not hasattr(make(OutputPerturbation, loss="huber"), "predict_proba")


def test_with_hardly_any_noise_they_agree_with_scikit_learn():
    """C of scikit-learn is 1/(nΛ); the intercept is given as a column, since theirs is free."""
    plain = LogisticRegression(C=1 / (300 * 0.01), fit_intercept=False, tol=1e-10)
    padded = np.column_stack([X, np.ones(300)])
    three = np.digitize(X[:, 0], [-0.2, 0.4])
    for labels, classes in ((Y, [0, 1]), (three, [0, 1, 2])):
        found = make(OutputPerturbation, epsilon=1e9, classes=classes).fit(X, labels)
        expected = plain.fit(padded, labels).coef_
        np.testing.assert_allclose(found.coef_, expected[:, :-1], atol=1e-5)
        np.testing.assert_allclose(found.intercept_, expected[:, -1], atol=1e-5)
    tilted = make(ObjectivePerturbation, epsilon=1e9).fit(X, Y)
    expected = plain.fit(padded, Y).coef_
    np.testing.assert_allclose(tilted.coef_, expected[:, :-1], atol=1e-5)
    down = make(NoisyGradientDescent, epsilon=1e6, steps=600, iterate="last", regularisation=0.01,
                learning_rate=1.5).fit(X, Y)  # fmt: skip
    np.testing.assert_allclose(down.coef_, expected[:, :-1], atol=0.05)


# --- what is published ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
def test_every_fit_draws_fresh_noise_unless_seeded(kind):
    one, two = (make(kind).fit(X, Y) for _ in range(2))
    assert (one.coef_ != two.coef_).all()
    assert one.guarantee_.publishable
    seeded = [make(kind, insecure_seed=9).fit(X, Y) for _ in range(2)]
    np.testing.assert_array_equal(seeded[0].coef_, seeded[1].coef_)
    assert not seeded[0].guarantee_.publishable
    assert "not private" in seeded[0].guarantee_.caveats[0]


@pytest.mark.parametrize("kind", PERTURBATIONS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 2, 3]])
def test_perturbation_states_its_guarantee_and_events(kind, delta, classes):
    model = make(kind, epsilon=0.8, delta=delta, classes=classes).fit(X, Y)
    assert (model.guarantee_.epsilon, model.guarantee_.delta) == (0.8, delta)
    assert model.guarantee_.neighbours is Neighbours.REPLACE_ONE
    (event,) = model.events_
    single = event.event if isinstance(event, Repeated) else event
    assert isinstance(single, ForReplacement)
    if kind is OutputPerturbation and delta:
        assert isinstance(single.event, Gaussian)
        assert gaussian_epsilon(single.event.noise_multiplier, delta=delta) == pytest.approx(0.8)
    else:
        assert basic(model.events_) == (pytest.approx(0.8), pytest.approx(delta))
        assert isinstance(single.event, ApproximateDP if delta else PureDP)


@pytest.mark.parametrize("kind", PERTURBATIONS)
def test_costs_for_a_replaced_record_do_not_add_to_those_for_an_added_one(kind):
    events = make(kind).fit(X, Y).events_
    assert compose(events).neighbours is Neighbours.REPLACE_ONE
    down = make(NoisyGradientDescent).fit(X, Y).events_
    with pytest.raises(InvalidInput, match="do not add up"):
        compose([*events, *down])


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 6.0])
def test_descent_spends_its_target_and_no_more(epsilon):
    model = make(NoisyGradientDescent, epsilon=epsilon, steps=20).fit(X, Y)
    noise = model.calibration_.noise_multiplier
    step = SampledGaussian(sample_rate=1.0, noise_multiplier=noise, public_rate=True)
    assert model.events_ == (Repeated(step, 20),)
    assert compose(model.events_).guarantee(delta=1e-5) == model.guarantee_
    assert epsilon * (1 - 1e-5) < model.guarantee_.epsilon <= epsilon
    assert model.guarantee_.neighbours is Neighbours.ADD_REMOVE
    # The exact ε of twenty full-batch Gaussians, which moments bound from above:
    assert gaussian_epsilon(noise / math.sqrt(20), delta=1e-5) <= epsilon


@pytest.mark.parametrize("iterate", ["average", "last"])
def test_descent_does_not_use_the_true_number_of_records_and_stays_in_its_ball(iterate):
    whole = make(NoisyGradientDescent, iterate=iterate, radius=0.5, learning_rate=9.0).fit(X, Y)
    part = make(NoisyGradientDescent, iterate=iterate, radius=0.5, learning_rate=9.0).fit(
        X[:40], Y[:40]
    )
    assert whole.calibration_ == part.calibration_
    length = math.hypot(np.linalg.norm(whole.coef_), whole.intercept_[0])
    assert length <= 0.5 * (1 + 1e-5)


@pytest.mark.parametrize(
    ("kind", "delta"),
    [*((kind, delta) for kind in PERTURBATIONS for delta in (0.0, 1e-5)),
     (NoisyGradientDescent, 1e-5)],
)  # fmt: skip
def test_low_bits_are_rounded_away(kind, delta):
    """Multiples of a power of two, with a dozen and more binary digits to spare."""
    weights = make(kind, delta=delta, fit_intercept=False).fit(X, Y).coef_
    digits = [int(whole) for whole in np.abs(np.frexp(weights)[0] * 2.0**53).ravel()]
    assert min(whole & -whole for whole in digits) >= 2**12


def test_loading_it_loads_no_torch():
    code = "import dpsgd.convex, sys; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


# --- how well they learn -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells():
    """Breast cancer cells; scales come from a quarter of the records that counts as public."""
    table, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(3).permutation(len(table))
    table, labels = np.log1p(table[order]), labels[order]
    public = table[:142]
    rows = (table - public.mean(axis=0)) / public.std(axis=0) / 8
    return rows[142:442], labels[142:442], rows[442:], labels[442:]


@pytest.mark.parametrize(
    ("kind", "given", "least"),
    [
        (OutputPerturbation, {"regularisation": 0.1, "loss": "huber"}, 0.75),
        (OutputPerturbation, {"regularisation": 0.1, "loss": "huber", "delta": 1e-5}, 0.8),
        (ObjectivePerturbation, {"regularisation": 0.03}, 0.8),
        (ObjectivePerturbation, {"regularisation": 0.03, "delta": 1e-5}, 0.83),
        (NoisyGradientDescent, {"delta": 1e-5}, 0.85),
        (NoisyGradientDescent, {"delta": 1e-5, "loss": "hinge", "iterate": "last"}, 0.88),
        (NoisyLeastSquares, {}, 0.87),
    ],
)
def test_breast_cancer_at_epsilon_one(cells, kind, given, least):
    """300 records, 30 features; always saying the larger class is right in 64 of 100 cases."""
    rows, labels, test_rows, test_labels = cells
    scores = [
        make(kind, epsilon=1.0, clip_rows=True, insecure_seed=seed, **given)
        .fit(rows, labels)
        .score(test_rows, test_labels)
        for seed in range(20)
    ]
    print(kind.__name__, given, f"{np.mean(scores):.3f} ± {np.std(scores):.3f}")
    assert np.mean(scores) > least


def test_ten_classes_are_learnt():
    table, labels = load_digits(return_X_y=True)
    table = table / np.linalg.norm(table, axis=1, keepdims=True)
    public = {"classes": range(10), "epsilon": 5.0, "delta": 1e-5, "insecure_seed": 2}
    soft = OutputPerturbation(**public).fit(table[:1300], labels[:1300])
    down = NoisyGradientDescent(records=1300, **public).fit(table[:1300], labels[:1300])
    split = ObjectivePerturbation(**public | {"epsilon": 50.0}).fit(table[:1300], labels[:1300])
    squares = NoisyLeastSquares(**public | {"epsilon": 1.0}).fit(table[:1300], labels[:1300])
    for model in (soft, down, split, squares):
        assert model.score(table[1300:], labels[1300:]) > 0.6
