"""Task sets: right answers, disjoint splits, balance, order."""

import hashlib
import re
from collections import Counter
from functools import reduce
from operator import mul
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.config import parse_config
from repl_rl.errors import ConfigError, ReplRLError
from repl_rl.tasks import FAMILIES, SYMBOLIC_FAMILIES, environment_of, grade, make_tasks, split_of
from repl_rl.tasks.families import EASY_FAMILIES
from repl_rl.tasks.make import KNOWN


def _binomial(n, k):
    return reduce(mul, range(n - k + 1, n + 1)) // reduce(mul, range(1, k + 1))


def _power(base, exponent, modulus):
    result = 1
    for _ in range(exponent):
        result = result * base % modulus
    return result


SECOND_METHOD = {
    "product": lambda a, b: sum(a * int(digit) * 10**place for place, digit in enumerate(reversed(str(b)))),
    "remainder": lambda a, m: a - a // m * m,
    "modpow": _power,
    "gcd": lambda a, b: max(d for d in range(1, min(a, b) + 1) if a % d == b % d == 0),
    "lcm": lambda a, b: next(m for m in range(a, a * b + 1, a) if m % b == 0),
    "digit_sum": lambda n: sum(n // 10**place % 10 for place in range(20)),
    "divisors": lambda n: sum(n % d == 0 for d in range(1, n + 1)),
    "binomial": _binomial,
    "range_sum": lambda a, b: sum(range(a, b + 1)),
    "square_sum": lambda a, b: (b * (b + 1) * (2 * b + 1) - (a - 1) * a * (2 * a - 1)) // 6,
    "small_sum": lambda a, b: len([*range(a), *range(b)]),
    "small_difference": lambda a, b: len(range(b, a)),
    "small_product": lambda a, b: sum([a] * b),
    "small_remainder": lambda a, m: next(rest for rest in range(m) if (a - rest) / m == (a - rest) // m),
}
NUMBERS = FAMILIES | EASY_FAMILIES
HERE = Path(__file__).parent
UNKNOWN = yaml.safe_load((HERE / "unknown_families.yaml").read_text(encoding="utf-8"))


def _problems(tasks):
    return {(task.family, tuple(sorted(task.metadata["operands"]))) for task in tasks}


@pytest.mark.parametrize("family", NUMBERS)
def test_answers_agree_with_a_second_method(family):
    for task in make_tasks([family], 40, 0, "train") + make_tasks([family], 20, 0, "heldout"):
        assert task.answer == str(SECOND_METHOD[family](*task.metadata["operands"]))
        if family in EASY_FAMILIES:
            assert task.answer != "0"
            assert all(3 <= operand <= 2999 for operand in task.metadata["operands"])


@pytest.mark.parametrize("family", NUMBERS)
def test_each_phrasing_states_every_operand(family):
    tasks = make_tasks([family], 60, 3, "heldout")
    for task in tasks:
        numbers = map(int, re.findall(r"\d+", task.question))
        assert sorted(numbers) == sorted(task.metadata["operands"])
    words = {re.sub(r"\d+", "#", task.question) for task in tasks}
    assert len(words) == len(NUMBERS[family].phrasings) >= 3


@pytest.mark.parametrize("family", EASY_FAMILIES)
def test_there_are_easy_problems_enough(family):
    """For a run of some hundred steps, and for held-out figures with narrow intervals."""
    assert len({task.id for task in make_tasks([family], 1500, 1, "train")}) == 1500
    assert len({task.id for task in make_tasks([family], 240, 1, "heldout")}) == 240


def test_no_list_means_the_ten_number_families():
    assert {task.family for task in make_tasks(None, 100, 0, "train")} == set(FAMILIES)
    assert len(FAMILIES) == 10
    assert not set(FAMILIES) & {*SYMBOLIC_FAMILIES, *EASY_FAMILIES}


def test_the_split_does_not_depend_on_the_order_of_operands():
    assert all(split_of("product", (a, 7919)) == split_of("product", (7919, a)) for a in range(200))


@given(st.integers(), st.integers(1, 200), st.sampled_from(["train", "heldout"]))
def test_sets_are_deterministic_balanced_and_without_duplicates(seed, count, split):
    tasks = make_tasks(None, count, seed, split)
    assert tasks == make_tasks(None, count + 17, seed, split)[:count]
    assert len(tasks) == len(_problems(tasks)) == len({task.id for task in tasks}) == count
    per_family = Counter(task.family for task in tasks)
    assert max(per_family.values()) - min(per_family[name] for name in FAMILIES) <= 1


def test_seeds_differ():
    assert make_tasks(None, 20, 0, "train") != make_tasks(None, 20, 1, "train")


def test_only_the_families_that_were_asked_for():
    tasks = make_tasks(["gcd", "limit-1"], 5, 0, "train")
    assert [task.family for task in tasks] == ["gcd", "limit-1", "gcd", "limit-1", "gcd"]
    assert tasks[0].id.startswith("gcd-train-")


@pytest.mark.parametrize(("family", "message"), UNKNOWN["names"].items())
def test_an_unknown_family_is_named_with_its_nearest(family, message):
    with pytest.raises(ConfigError, match=message):
        make_tasks(family, 1, 0, "train")


def test_one_family_needs_no_list():
    assert make_tasks("gcd", 3, 0, "train") == make_tasks(["gcd"], 3, 0, "train")


@pytest.mark.parametrize(
    ("families", "count", "split", "message"),
    [
        (None, 0, "train", "empty task set"),
        (None, -1, "train", "empty task set"),
        ([], 1, "train", "empty task set"),
        (None, 1, "test", "unknown split 'test'"),
    ],
)
def test_what_gives_no_tasks_is_refused(families, count, split, message):
    with pytest.raises(ConfigError, match=message):
        make_tasks(families, count, 0, split)


@pytest.mark.more
def test_families_by_import_path_make_grade_and_split_as_shipped_ones(own_families):
    names = ["own_families:doubled", "own_families:factors-2"]
    first, second = make_tasks(names, 2, 0, "train")
    [number] = first.metadata["operands"]
    assert (first.family, first.id, first.answer) == (names[0], f"doubled-train-{number}", str(2 * number))
    assert grade(first, [str(2 * number)]) == 1.0
    [number] = second.metadata["operands"]
    answers = (["2", str(number // 2)], ["2", "2"], ["2", "2", str(number // 4)])
    assert [grade(second, answer) for answer in answers] == [1.0, 0.0, 0.0]
    assert not _problems(make_tasks(names, 60, 1, "heldout")) & _problems(make_tasks(names, 60, 1, "train"))
    assert environment_of(names[1:]) == "own_families:World"
    with pytest.raises(ConfigError, match="factors-2 needs own_families:World, gcd needs no environment"):
        environment_of(["own_families:factors-2", "gcd"])
    assert parse_config({"tasks": {"families": names}}).import_paths == names


@pytest.mark.parametrize(("name", "message"), UNKNOWN["import paths"].items())
def test_an_import_path_that_leads_to_no_family_is_refused(name, message, own_families):
    with pytest.raises(ConfigError, match=f"tasks.families: .*{message}"):
        make_tasks([name], 1, 0, "train")


@pytest.mark.parametrize(("name", "message"), UNKNOWN["unfit"].items())
def test_a_family_whose_parts_do_not_fit_each_other_is_refused(name, message, own_families):
    with pytest.raises(ReplRLError, match=message):
        make_tasks([f"own_families:{name}"], 1, 0, "train")


def test_fields_without_numbers_stand_for_values_in_order(own_families):
    tasks = make_tasks(["own_families:automatic"], 16, 0, "train")
    assert len({tuple(sorted(task.metadata["operands"])) for task in tasks}) == 16
    assert all(task.question == "{} times {}?".format(*task.metadata["operands"]) for task in tasks)


def test_problems_are_those_of_earlier_versions() -> None:
    """Stored rollouts name them by seed and place."""
    made_here = {name for name, each in KNOWN.items() if each.environment is None and not each.needs_gym}
    names = [name for name in KNOWN if name in made_here and ":" not in name]  # without those of other tests
    told = [(task.id, task.question, task.answer) for name in names for task in make_tasks([name], 2, 0, "train")]
    assert hashlib.sha256(repr(told).encode()).hexdigest()[:16] == "a378f6522a8434f7"
