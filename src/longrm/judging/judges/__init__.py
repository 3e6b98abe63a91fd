"""Published judges by name, for `judge.name`: one file per judge."""

from longrm.judging.judges.con_j import ConJ
from longrm.judging.judges.judgelrm import JudgeLRM
from longrm.judging.judges.named import NamedJudge
from longrm.judging.judges.nemotron import NemotronGenRM
from longrm.judging.judges.prometheus import Prometheus, PrometheusAbsolute
from longrm.judging.judges.rm_r1 import RmR1
from longrm.judging.judges.selene import Selene, SeleneAbsolute
from longrm.judging.judges.skywork_critic import SkyworkCritic

JUDGES: dict[str, type[NamedJudge]] = {
    "nemotron-genrm": NemotronGenRM,
    "rm-r1": RmR1,
    "judgelrm": JudgeLRM,
    "skywork-critic": SkyworkCritic,
    "selene": Selene,
    "selene-absolute": SeleneAbsolute,
    "prometheus-2": Prometheus,
    "prometheus-2-absolute": PrometheusAbsolute,
    "con-j": ConJ,
}
"""The registry of `judge.name`."""
