"""Steps for tables, and missing values on their way through the others."""

from __future__ import annotations

import numpy as np
import pytest
from numpy import nan

from pate.encoders.chain import fit_encoder, load_encoder, save_encoder
from pate.encoders.spec import EncoderSpec, StepSpec
from pate.errors import InvalidInput

# age, sex (2 categories), size (3 categories)
PUBLIC = np.array([[20.0, 0, 2], [nan, 1, 2], [40, 1, nan], [60, 1, 0], [20, 0, 1]])
KINDS = (0, 2, 3)
OTHERS = np.array([[nan, -1, nan], [30, nan, 2]])


def fit(*steps, categories=KINDS, public=PUBLIC):
    return fit_encoder(EncoderSpec(steps=list(steps)), public, categories=categories)


@pytest.mark.parametrize(
    ("step", "filled"),
    [
        ("impute", [35, 1, 2]),
        ({"name": "impute", "strategy": "median"}, [30, 1, 2]),
        ({"name": "impute", "strategy": "most_frequent"}, [20, 1, 2]),
        ({"name": "impute", "strategy": "constant"}, [0, 1, 2]),
        ({"name": "impute", "strategy": "constant", "value": -5.0}, [-5, 1, 2]),
    ],
)
def test_impute_fills_from_public_inputs(step, filled):
    chain = fit(step, "ordinal")
    np.testing.assert_array_equal(chain.transform(np.full((1, 3), nan)), [filled])
    np.testing.assert_array_equal(chain.transform([[1.0, -1.0, 0.0]]), [[1, -1, 0]])


def test_one_hot_has_a_place_for_each_category_and_for_missing_ones():
    chain = fit("one-hot", "impute")
    np.testing.assert_array_equal(
        chain.transform([[30, 1, 0], [nan, -1, nan]]),
        # age, sex 0, sex 1, size 0, 1, 2, size missing: sex is never missing in public
        [[30, 0, 1, 1, 0, 0, 0], [35, 0, 0, 0, 0, 0, 1]],
    )


def test_ordinal_leaves_codes_and_gaps():
    np.testing.assert_array_equal(fit("ordinal").transform(OTHERS), OTHERS)


@pytest.mark.parametrize(
    "steps",
    [
        ["one-hot", "impute", "standardise"],
        ["impute", "one-hot", {"name": "pca", "dimension": 2}],
        ["ordinal"],
    ],
)
def test_saved_and_loaded_and_each_record_on_its_own(steps, tmp_path):
    spec = EncoderSpec(steps=steps)
    chain = fit_encoder(spec, PUBLIC, categories=KINDS)
    save_encoder(chain, tmp_path)
    loaded = load_encoder(spec, tmp_path)
    together = chain.transform(OTHERS)
    np.testing.assert_array_equal(loaded.transform(OTHERS), together)
    for at, record in enumerate(OTHERS):
        np.testing.assert_array_equal(chain.transform(record[None])[0], together[at])


def test_standardise_leaves_missing_values_out():
    chain = fit("standardise", categories=(), public=PUBLIC[:, :1])
    known = PUBLIC[~np.isnan(PUBLIC[:, 0]), 0]
    np.testing.assert_allclose(
        chain.transform([[20.0], [nan]]), [[(20 - known.mean()) / known.std()], [nan]], rtol=1e-6
    )


REFUSED = {
    "no step": ([], KINDS, '2 of 3 columns hold categories.* add the step "one-hot"'),
    "impute alone": (["impute"], KINDS, "2 of 3 columns hold categories"),
    "scaled codes": (["standardise", "one-hot"], KINDS, '"standardise" would take codes'),
    "nothing to encode": (["one-hot"], (), "one-hot finds no column of categories"),
    "encoded before": (["one-hot", "ordinal"], KINDS, "ordinal finds no column of categories"),
    "gaps": (["one-hot", {"name": "pca", "dimension": 2}], KINDS, "pca takes no missing values"),
    "a gap alone": (["normalise"], (), "normalise takes no missing values"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    steps, categories, words = REFUSED[case]
    with pytest.raises(InvalidInput, match=words):
        fit(*steps, categories=categories)


def test_gaps_that_public_inputs_do_not_have_are_refused_too():
    chain = fit("normalise", categories=(), public=np.eye(3))
    with pytest.raises(InvalidInput, match='put the step "impute" before it'):
        chain.transform(PUBLIC)
    with pytest.raises(InvalidInput, match="infinite"):
        fit("impute", categories=()).transform([[np.inf, 0, 0]])
    with pytest.raises(InvalidInput, match=r"impute is for tables.*\(2, 2\)"):
        fit("impute", categories=(), public=np.zeros((4, 2, 2)))
    with pytest.raises(InvalidInput, match="column 2 has no value in any public input"):
        fit("impute", categories=(), public=np.array([[1, nan], [2, nan]]))


def test_keys_of_the_steps():
    with pytest.raises(ValueError, match='takes value with strategy = "constant" only'):
        StepSpec(name="impute", value=3.0)
    with pytest.raises(ValueError, match="takes no strategy"):
        StepSpec(name="one-hot", strategy="mean")
    with pytest.raises(ValueError, match="most_frequent"):
        StepSpec(name="impute", strategy="mode")
    assert StepSpec(name="root").model_dump().keys().isdisjoint({"strategy", "value"})
    assert StepSpec(name="impute").model_dump()["strategy"] == "mean"


@pytest.mark.parametrize(
    ("name", "params", "file"),
    [
        ("preprocessing:KBinsDiscretizer", {"n_bins": 3, "encode": "onehot-dense"}, "step.skops"),
        ("preprocessing:MinMaxScaler", {"clip": True}, "step.skops"),
        ("preprocessing:StandardScaler", {}, "arrays.npz"),
    ],
)
def test_transformers_of_scikit_learn_by_name(name, params, file, tmp_path):
    public = np.random.default_rng(0).gamma(2.0, size=(60, 3))
    spec = EncoderSpec(steps=[{"name": f"sklearn.{name}", "params": params}])
    chain = fit_encoder(spec, public)
    save_encoder(chain, tmp_path)
    assert (tmp_path / "step-0" / file).is_file()
    np.testing.assert_array_equal(
        load_encoder(spec, tmp_path).transform(public), chain.transform(public)
    )
    if file == "step.skops":
        (tmp_path / "step-0" / file).write_bytes(b"PK damaged")
        with pytest.raises(InvalidInput, match="is not a model that can be read"):
            load_encoder(spec, tmp_path)
