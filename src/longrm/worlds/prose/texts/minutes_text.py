"""Minutes: entries with a date and a heading, each of which tells what a committee talked about."""

from longrm.worlds.prose.generated_text import GeneratedText, themes
from longrm.worlds.prose.word_lists import EVERYDAY, PEOPLE

_THEMES = themes(
    """
    Repairs
    {person} reported that the {part} in {room} [still needs attention|has been out of order since {weekday}|was repaired only in part].
    [Two|Three|Four] firms were asked for a quotation, and [one|only one|none] of them has answered so far.
    The committee [asked|urged|reminded] {colleague} to [call them again|find another firm|wait for the others] before {season}.
    Until then [the door stays locked|a notice will be put up|visitors are sent round the other way].
    {colleague} offered to [lend|bring] [the tools that are needed|a ladder|spare parts].
    [Some|A few|Most] members thought that the work could [wait|be done by volunteers|be combined with the painting].
    It was agreed to spend no more than {number} hundred on it [this year|for now|without a further vote].

    Accounts
    {person} went through the accounts of the last [month|quarter|half year], which [were found in order|showed a small surplus|had {few} open items].
    The largest expense was the {part} in {room}, at {number} hundred.
    [Fees|Dues|Donations] came in [later|earlier|more slowly] than in the year before.
    {colleague} asked why the [postage|insurance|telephone bill] had gone up, and [nobody knew|was told that prices had risen|the bill will be checked].
    {number} members have not paid yet; [a letter|a second reminder|a friendly note] will go out on {weekday}.
    The [report|statement|summary] was accepted [without objection|with one abstention|after a short discussion].

    Summer outing
    About {number} people have signed up for the outing, [fewer|more] than [last year|expected].
    {person} [has hired|would like to hire|is still looking for] a bus with room for all of them.
    It leaves at [seven|eight|nine] on {weekday} from [the square|the station|the church].
    {colleague} will [see to the sandwiches|bring the first-aid box|collect the money on the way].
    If it rains, [the museum is the second choice|the walk is cut short|everybody meets in {room} instead].
    [Children|Guests] pay half, [as always|as in other years|as was decided in {season}].

    Library corner
    {person} has sorted {number} boxes of donated books and [kept|threw out|gave away] about half of them.
    The shelves in {room} are full, so [no more books can be taken|a second case is needed|duplicates will be sold].
    [Novels|Travel books|Biographies] are borrowed most, [cookbooks|atlases|old magazines] hardly ever.
    {colleague} suggested [longer hours on {weekday}|a list of new titles by the entrance|a small fine for late returns].
    The suggestion for the books was [welcomed|put off|sent back for more thought].
    A [school class|reading group|visiting author] is expected in {season}.

    Noise complaints
    A neighbor [wrote|called|came in person] to complain about [the music on {weekday}|cars that are left running|deliveries before six].
    {person} has [apologized|answered politely|asked for details] and [promised to look into it|heard nothing since].
    It was pointed out that [the rules have not changed|the event had been announced|the walls of {room} are thin].
    From now on [the last song is at ten|the side entrance closes at nine|somebody will stand by the gate].
    {colleague} will [speak to the band|put up a sign|visit the neighbor] next week.

    Volunteers
    {few} new volunteers [introduced themselves|were welcomed|have joined since the last meeting].
    {person} will show them [how the till works|where everything is kept|the alarm and the lights].
    There is still nobody for {weekday} [morning|afternoon|evening], [which worries {colleague}|in spite of two notices|as so often].
    A [rota|plan|list] for {season} hangs in {room}; [changes are made in pencil|please sign it].
    {colleague} was thanked for {few} years of [patient work|keeping the keys|running the kitchen].
    [Coffee|Cake|A small gift] will be paid for from the petty cash.

    Website
    The website was [down for a day|hard to find|slow again] in the week of the [fair|concert|open day].
    {person} blames [the old server|a lapsed contract|a faulty update] and has [moved the pages|asked for help|restored a copy].
    About {number} people a day look at it, mostly [for the opening hours|for the calendar|on their phones].
    {colleague} would like [larger photographs|fewer menus|a page for the youth group], [to which nobody objected|which has to wait].
    The password of the old mailbox was lost, so [messages go to the office for now|a new one was set up].

    Safety
    The inspector looked at {room} and [found nothing to complain of|asked for a second exit sign|wants the {part} tested].
    {person} keeps the [certificates|forms|reports] in the cabinet, [where anybody may read them|in the top drawer].
    A fire drill is planned for {season}; [the date will not be announced|everyone meets across the street].
    {few} extinguishers are [past their date|to be replaced|due for a check].
    {colleague} asked whether the insurance covers [volunteers|borrowed equipment|the trailer], and [it does|this will be cleared up].

    Any other business
    {person} thanked everybody who [helped with the move|baked for the fair|stayed late on {weekday}].
    [An umbrella|A gray scarf|A pair of glasses] was left in {room} and can be [collected|claimed] at the desk.
    The next meeting is on {weekday} in {room}, [half an hour earlier than usual|at the usual time|if nothing comes up].
    {colleague} will [be away until {season}|take the minutes then|send the papers round beforehand].
    The meeting closed at [nine|half past nine|a quarter to ten] [after a lively discussion|in good spirits|for want of time].

    Youth group
    {number} young people came to the first evening, [far more than there were seats for|most of them for the games].
    {person} would like to use {room} [every other week|until ten|for a film night in {season}].
    [Parents|Neighbors|The older members] were [asked for their views|skeptical at first|glad to hear it].
    {colleague} warned that the {part} [will not stand much more|must be switched off by hand|is not insured].
    A trial of {few} months was agreed, [after which the committee decides again|with a report at the end].
    """
)

MINUTES = GeneratedText(
    title="minutes",
    about="minutes of a committee: dated entries with headings",
    head="{date}, {title}. ",
    themes=_THEMES,
    slots={"person": PEOPLE, "colleague": PEOPLE, **EVERYDAY},
    closings=(
        "Noted.",
        "Agreed.",
        "There was a short break.",
        "There were no questions.",
        "The chair moved on.",
        "This took some time.",
        "It was left at that.",
        "Nobody had anything to add to this.",
        "The point will come up again next time.",
        "The chair thanked all who had spoken on the matter.",
    ),
)
