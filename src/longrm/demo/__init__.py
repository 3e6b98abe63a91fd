"""The whole street on a laptop: reveals a tiny reward model's context boundary, moves it, and shows both.

One checkpoint, trained on short contexts, is continued in two arms that differ in their data alone: more
short contexts, or contexts that grow from short to long.
"""

from longrm.demo.street import DemoSettings, run

__all__ = ["DemoSettings", "run"]
