"""The whole package on a laptop: reveals a tiny reward model's context boundary, moves it, and shows both.

One checkpoint, trained on short contexts, is trained further twice, on data that alone differs: more short contexts, or
contexts that grow from short to long. A generative judge is trained, too, by imitation of judgments, short and then
long, and by preference for judgments of consensus.
"""

from longrm.demo.demo_run import run_demo
from longrm.demo.trainings import DemoSettings

__all__ = ["DemoSettings", "run_demo"]
