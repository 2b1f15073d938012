"""Testing: `tileflow.testing.check_operator`, which looks for what is wrong with an operator of one's own."""

from .operators import Checked, OperatorFault, check_operator

__all__ = ["Checked", "OperatorFault", "check_operator"]
