"""The basis of step-time models in tests: that of a small model on two cores."""

from __future__ import annotations

from twofold.core.step_basis import StepBasis

PRIOR = (4e-3, 3e-4, 8e-5, 1e-4, 4e-7, 1e-6)
BASIS = StepBasis(32, PRIOR)
