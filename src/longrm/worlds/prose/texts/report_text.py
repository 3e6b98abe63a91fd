"""A report: numbered-looking sections of plain, somewhat dry prose."""

from longrm.worlds.prose.generated_text import GeneratedText, themes
from longrm.worlds.prose.word_lists import EVERYDAY

_THEMES = themes(
    """
    Visitors
    The number of visitors [rose|fell] by {number} per cent against the year before, [mainly in {season}|in spite of the weather|as had been expected].
    On average {number} people an hour were counted at the entrance, [most of them on {weekday}|fewer than in other towns].
    [School classes|Groups|Families with small children] made up about a third, [a share that has hardly changed|more than ever before].
    The count of visitors is [an estimate|taken by hand|made by a sensor above the door] and may be off by {few} per cent.
    Asked for their reasons, [many named the low price|few could name one|most said that they live nearby].
    [No conclusion about visitors can be drawn yet|The trend deserves attention|A longer series is needed].

    Energy
    Consumption was [{number} per cent lower|about the same|slightly higher] after the {part} had been [replaced|adjusted|cleaned].
    The meters in {room} were read every {weekday}, [by two people|at the same hour|with {few} gaps].
    [A cold spell|A long holiday|A faulty valve] in {season} explains [most|some|none] of the difference.
    Savings from the {part} [should pay for the work|are smaller than the offer promised|cannot be separated from other effects].
    It is recommended to [repeat the measurement|keep the new setting|look at {room} next].

    Staff
    Over the period {few} members of staff left and {few} [joined|returned from leave], [so that the total is almost unchanged|which the team felt].
    Sick leave [fell|rose] to {number} days [a month|in all], [with a peak in {season}|without a clear pattern].
    In the survey {number} per cent [were content with|complained about|had no opinion on] the {part}.
    Training was offered in {room} on {few} occasions and [well attended|had to be repeated|canceled once].
    The [main wish|most frequent complaint] concerned [shift plans|noise|the distance to the canteen].

    Method
    The figures in this part rest on {number} [interviews|questionnaires|site visits], [carried out by telephone|of which {few} were unusable].
    Every sample was [weighed|labeled|examined] {few} times, [and the middle value was kept|by different people].
    Where a value was missing, [the mean was used|the row was dropped|the neighbors were asked].
    [Errors of this size|Such gaps|Small samples] are [common in the field|no cause for concern|a known weakness].
    The full tables are [kept in {room}|available on request|printed at the end].

    Traffic
    Between seven and nine about {number}0 vehicles pass the crossing, [one in {few} of them heavy|most of them from the north].
    On {weekday} the queue was [{number} cars long|shorter than usual|back to normal by ten].
    The new sign [is obeyed by most|was overlooked at first|has had little effect].
    Cyclists [avoid the spot|have doubled in number|were not counted before {season}].
    A [roundabout|lower limit|longer green phase] was [considered|ruled out|left to a later study].

    Buildings
    The condition of {room} is [fair|poor in places|better than its age suggests], with [cracks above the door|damp along one wall|no visible damage].
    The {part} was last overhauled {number} years ago and [should be renewed|may serve a little longer|no longer meets the rules].
    Costs of {number} thousand were estimated, [excluding tax|with a wide margin|on the basis of {few} offers].
    Access is [steep|possible by the side door only|barred until {season}].
    The inspection took place on {weekday} in [dry|wet|bright] weather.

    Water
    Samples were taken at {few} points, [upstream and downstream|at a depth of one meter|always before noon].
    The level stood {number} centimeters [above|below] the long-term mean [in {season}|for most of the period].
    [Nitrate|Lime|Iron] was found [in traces|in two samples|below the limit everywhere].
    The smell that residents reported [could not be confirmed|was traced to a drain|came back on {weekday}].
    A further series is [planned for {season}|not considered necessary|subject to funds].

    Finances
    Income [exceeded|fell short of] the plan by {number} thousand, [owing to late grants|thanks to higher sales|for the second time].
    Spending on the {part} was {number} per cent of the total, [in line with the plan|a record].
    The reserve covers {few} months, [one less than advised|which is thought to be enough].
    [No loans were taken|One loan was repaid|Terms are being renegotiated] in {season}.
    The auditors [raised no objection|asked for clearer receipts|commended the archive].

    Outlook
    For the coming year the authors expect [slow growth|little change|a difficult first half].
    Much depends on whether the {part} is [finished|financed|approved] before {season}.
    {few} measures are proposed, [the cheapest first|in no particular order].
    The first is to [close {room} on {weekday}|share equipment with the neighbors|raise fees by {number} per cent].
    [Progress should be reviewed|The figures will be updated|A short note will follow] after {few} months.
    """
)

REPORT = GeneratedText(
    title="report",
    about="a report: sections of plain, somewhat dry prose",
    head="{title}, as of {date}\n",
    themes=_THEMES,
    slots=EVERYDAY,
    closings=(
        "Details follow.",
        "Sources are named.",
        "See below.",
        "The effect is small.",
        "No data are missing here.",
        "The tables come at the end.",
        "Further work is needed on this point.",
        "These figures were checked by a second person.",
    ),
)
