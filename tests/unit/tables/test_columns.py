import numpy as np
import pyarrow as pa
import pytest

from rollbook.core.errors import ArtifactError
from rollbook.tables.columns import aligned, group_labels, numbers_in, per_token

ROLLOUTS = pa.table(
    {
        "rollout_id": ["a", "b", "c"],
        "group_id": ["y", "x", "y"],
        "loss_mask": [[True, True], [], [False]],
    }
)


def test_rows_come_in_the_order_of_the_rollouts() -> None:
    table = pa.table({"rollout_id": ["c", "a", "b"], "reward": [3, 1, 2]})
    assert aligned(table, ROLLOUTS, "scores")["reward"].to_pylist() == [1, 2, 3]
    same = table.take(pa.array([1, 2, 0]))
    assert aligned(same, ROLLOUTS, "scores") is same  # nothing is copied


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        (["a", "b"], "c is not in scores"),
        (["a", "b", "z"], "c is not in scores"),
        (["a", "b", "c", "c"], "4 rows"),
        (["a", "b", "b"], "c is not in scores"),
    ],
)
def test_other_rollouts_are_refused(ids: list[str], named: str) -> None:
    with pytest.raises(ArtifactError, match=named):
        aligned(pa.table({"rollout_id": ids}), ROLLOUTS, "scores")


def test_labels_of_groups_are_in_order_of_appearance() -> None:
    chunks = pa.concat_tables([ROLLOUTS, ROLLOUTS.slice(1, 1)])
    np.testing.assert_array_equal(group_labels(chunks), [0, 1, 0, 1])


def test_lists_of_tokens() -> None:
    table = pa.table({"values": pa.array([[1.0, 2.0], [], None], pa.list_(pa.float64()))})
    found = per_token(table, "values", ROLLOUTS)
    assert found.values.tolist() == [1.0, 2.0, 0.0]
    assert found.lengths.tolist() == [2, 0, 1]
    longer = pa.table({"values": [[1.0, 2.0], [3.0], [4.0]]})
    with pytest.raises(ArtifactError, match="values of b has 1 items, its completion 0 tokens"):
        per_token(longer, "values", ROLLOUTS)


def test_numbers_in_a_column() -> None:
    np.testing.assert_array_equal(
        numbers_in(pa.chunked_array([[1.5, None], [2.0]])), [1.5, np.nan, 2]
    )
    np.testing.assert_array_equal(
        numbers_in(pa.chunked_array([[True, None, False]])), [1, np.nan, 0]
    )
