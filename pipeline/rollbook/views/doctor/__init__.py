"""What is wrong with a run, read from what it stored: `diagnose`, and checks that are one file each."""

from rollbook.views.doctor.diagnosis import Diagnosis, diagnose, diagnosis_of
from rollbook.views.doctor.finding import Change, Finding

__all__ = ["Change", "Diagnosis", "Finding", "diagnose", "diagnosis_of"]
