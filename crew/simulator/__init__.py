"""Simulation of history policies on recorded transcripts, without a model, by the code of a live run."""

from crew.simulator.billing import Prices
from crew.simulator.recording import Recording, read_recording
from crew.simulator.report import Row, Simulation
from crew.simulator.simulate import simulate

__all__ = [
    "Prices",
    "Recording",
    "Row",
    "Simulation",
    "read_recording",
    "simulate",
]
