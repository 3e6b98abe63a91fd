"""The whole street on a laptop: reveals a tiny reward model's context boundary, moves it, and shows both.

One checkpoint, trained on short contexts, is continued in two arms that differ in their data alone: more
short contexts, or contexts that grow from short to long. On the generative road a judge that writes is trained by
imitation of judgments, short and then long, and by preference for judgments of consensus.
"""

from longrm.demo.arms import DemoSettings
from longrm.demo.street import run

__all__ = ["DemoSettings", "run"]
