import pytest
import torch

from tests.contracts import CASES, Case, make_case


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)
