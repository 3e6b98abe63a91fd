"""Code: functions with comments; facts are in comments, too."""

from longrm.worlds.prose.generated_text import GeneratedText

_THEMES = {
    "totals": (
        "    {a} = sum({b}.{c} for {b} in {d})",
        "    {a} = {d}[0].{c} if {d} else {n}",
        "    # The [total|sum|count] is kept even where [a row is empty|{d} has gaps|rows repeat].",
        '    if {a} > {n}:\n        raise ValueError(f"[too many|unexpected] {c}: {{{a}}}")',
        "    # Rounded late, [so that cents add up|as the tests expect|see the note below].",
        "    {d}.append(round({a}, {k}))",
        "    return {a}",
    ),
    "loading": (
        '    {b} = Path({c}) / f"{a}-{{{d}}}.json"',
        '    {b} = Path("{a}").with_suffix(".{d}")',
        "    # [Older|Some|Most] files were written [without a header|on another system|by hand].",
        '    with {b}.open(encoding="utf-8") as stream:\n        {d} = json.load(stream)',
        "    # A missing key is [no error here|filled in later|counted as zero].",
        '    {c} = {d}.get("{a}", {n})',
        "    {d}.update({a}={c}, size={k})",
        "    return {d}",
    ),
    "retry": (
        "    {b} = {c}.open(timeout={n})",
        "    {b}, {a} = {c}.connect({d}), {k}",
        "    # The server [drops idle connections|answers twice at times|is slow after a restart].",
        "    while {b}.busy():\n        {b}.wait({k})",
        "    # [Waiting longer does not help|The limit was found by trial|Half the wait would do].",
        "    if {b}.status < {n}00:\n        return {b}",
        '    raise TimeoutError(f"{c} gave up after {k} times {{{d}}}")',
    ),
    "sorting": (
        "    {a} = sorted({c}, key=lambda {b}: ({b}.{d}, {b}.name))",
        "    {a} = [{b} for {b} in {c} if {b}.{d} > {n}]",
        "    # Ties keep [their order|the order of the file|no order that one should rely on].",
        "    for {b}, other in zip({a}, {a}[1:]):\n        {b}.{d} = min({b}.{d}, other.{d} + {n})",
        "    # [This loop is hot|Called once a day|Not thread-safe], [so keep it plain|do not tune it].",
        "    {a}.reverse()",
        "    return {a}[:{n}]",
    ),
    "settings": (
        "    {a}: int = {n}",
        "    {b}: float = 0.{n}",
        "    # Above {n} the [cache|queue|table] no longer fits, [measured on the old machine|as far as anybody knows].",
        '    {c}: str = "{d}"',
        "    # The setting was renamed [last year|twice], the [old|short] name still works.",
        "    verbose: bool = [False|True]",
        "    limits: tuple[int, ...] = ({k}, {n})",
    ),
    "parsing": (
        '    {a}, _, {b} = {c}.partition(":")',
        '    {a}, {b} = {c}.split(",")[:2]',
        "    # [Tabs|Trailing blanks|Empty lines] are [allowed|ignored|a sign of a broken export].",
        '    if not {a}.strip() or {a}.startswith("{d}"):\n        return None',
        "    {d}[{a}] = int({b} or {n})",
        "    # The [format|standard] has more fields, but [no file uses them|the readers skip them].",
        "    return {a}, {d}",
    ),
    "cache": (
        "    {a} = {d}.get({c})",
        "    {a} = {d}[hash({c}) % {n}]",
        "    # [Entries|Keys] live for {n} minutes, [give or take|which is a guess].",
        "    if {a} is None or {a}.age > {n}:\n        {a} = {d}.load({c})",
        "    # [Never clear this by hand|Cleared at night|Shared with the importer].",
        "    {d}[{c}] = {a}",
        "    return {a}.{b}",
    ),
    "check": (
        "    {a} = make_{b}({c}={n}, {d}={k})",
        "    {a} = {b}_of({c}, {d}=None)",
        "    # [Failed once on a slow machine|A regression|The numbers are from the manual].",
        "    assert {a}.{c} == {n}",
        "    assert {a}.{d} in ({k}, {n})",
        "    # [Do not tighten this bound|See the ticket|Kept for the sake of coverage].",
        "    with raises(KeyError):\n        {a}.remove({n})",
    ),
}
_NAMES = tuple(
    str.split("""
    amount batch block buffer bucket cell chunk column cursor delta entry event field frame group handle index item job
    label level limit margin metric node offset order page parent part payload point quota rank record region result
    sample score segment session share slice slot source span stage state step stream target task ticket token unit
    value weight worker zone
    """)
)

CODE = GeneratedText(
    title="code",
    about="functions of a program, with comments",
    head="def {title}_{a}_{b}({c}, {d}):\n",
    sentence="{sentence}",
    remark="    # {sentence}",
    label="# [{}]\n",
    joint="\n",
    most=6,
    themes=_THEMES,
    slots={
        "a": _NAMES,
        "b": _NAMES,
        "c": _NAMES,
        "d": _NAMES,
        "n": tuple(map(str, range(11, 99))),
        "k": tuple(map(str, range(2, 10))),
    },
    closings=(
        "Fine.",
        "Tested by hand.",
        "Nothing to see here.",
        "See the tests.",
        "Same as in the importer.",
        "Somebody should look at this.",
        "Works on all machines that we tried.",
        "The tests cover this case and the next one.",
    ),
)
