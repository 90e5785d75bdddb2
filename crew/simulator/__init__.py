"""What-if over recorded transcripts: any number of policies, no key, no model, the same code as a live run."""

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
