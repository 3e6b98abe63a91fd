"""A chat: short turns, each with its writer."""

from longrm.worlds.prose.generated_text import GeneratedText, themes
from longrm.worlds.prose.word_lists import EVERYDAY, HANDLES

_THEMES = themes(
    """
    lunch
    [anybody|is anyone] up for lunch at {few}? the usual place [is closed on {weekday}|has a new menu]
    i brought [soup|leftovers|a sandwich] but would come along for [coffee|the company]
    only if we are back by {few}, i have a call about the {part}
    same, though [last time|on {weekday}] we waited {number} minutes for the bill
    ok, meet you in {room}, [i will be the one who is late|do not wait for me]
    someone save a seat for {other} [please|who is still in {room}]

    deploy
    the build is [red|stuck|green] again, {number} tests, [nobody touched anything|it worked on {weekday}]
    i restarted it {few} times and now it [hangs|fails somewhere else|passes, which worries me]
    did {other} change the [cache|timeout|default]? the log has {number} lines about it
    that failing test is mine, sorry, [i will revert my change|a fix is on its way|it should have been behind a flag]
    let us not release before {weekday}, [nobody wants to fix this at night|{other} is away]
    fine by me, [i will tell the others|i put it on the board]

    office
    the {part} in {room} is [making that noise again|off|set to arctic]
    who has the [key|remote|good stapler] for {room}? {other} had it on {weekday}
    i called them, they will come [between eight and five|in {season}|when they come]
    put a note on the door so that nobody [panics|breaks it for good|calls a third time]
    done, [with a drawing|in large letters|and i apologized to the visitors]
    thanks, you are a [hero|treasure]

    weekend
    how was the [trip|wedding|hike]? you were back by {weekday}, no?
    we got [lost|soaked|a flat tire] {few} hours from anywhere
    it [rained|snowed a little|was too hot] but the food was [great|strange|plenty]
    {number} pictures, {few} of them [in focus|without my thumb]
    show us [at lunch|on {weekday}|some time], {other} will want to see them
    no more trips like that. [maybe in {season}|until next time]

    meeting
    are we still on for {weekday}? {room} is [taken|free after {few}|too small]
    i can do [the morning|any time|{few} sharp], {other} cannot
    could we do it in [{number} minutes|writing|half the time]? there are only {few} points
    i will send the [slides|list|numbers] tonight, [no promises|please read them]
    the part about the {part} [can wait|needs a decision|is not mine]
    our meeting is [moved|canceled|cut to half an hour], [check your calendar|shout if that hurts]

    customer
    the customer from {weekday} [called again|wrote back|is happy now]
    they want {number} of them by {season}, [in another color|with an invoice each|and a discount]
    we have {few} in {room}, [the rest is on order|i counted twice]
    {other} promised them [something|a call|the moon], so [be careful|let me handle it]
    i would say yes and [think later|ask for half up front]
    they can have them, but [in writing|not before {weekday}|you tell {other}]

    books
    finished the book you lent me, [cried a little|the ending, really?|{number} pages too long]
    told you. the second one is [better|shorter|out in {season}]
    {other} has it, [since {weekday}|for months now]
    the film changes [everything|the brother into an aunt], do not bother
    i have {few} more on the pile in {room}
    swap on {weekday}? [bring the long one|i will be in {room}]

    commute
    running late, the [bus|train|tram] stopped for {number} minutes [in the tunnel|without a word]
    same here, {few} stops and everybody [sighed|stood]
    start without me, {other} has the [notes|agenda|password for {room}]
    by bike it is {number} minutes, [uphill|if the path is dry]
    in {season} i will [move closer|buy a car|stop complaining]
    there now, [out of breath|and so is everybody else]

    present
    we still need a present for {other}, [it is on {weekday}|{few} of us have paid]
    what about [a plant|a voucher|something with wheels]? i have {number} in the envelope
    no more mugs, there are {few} in {room} already
    i can [bake|wrap it|write the card], but [not sing|only after {few}]
    the card is [in my drawer|going round|with the {part} people]
    perfect, [act surprised|not a word to {other}]
    """
)

CHAT = GeneratedText(
    title="chat",
    about="a group chat: short turns, each with its writer",
    head="#{title}, {date}\n",
    sentence="{writer}: {sentence}",
    joint="\n",
    most=5,
    changing=("writer",),
    themes=_THEMES,
    slots={"writer": HANDLES, "other": HANDLES, **EVERYDAY},
    closings=(
        "ok",
        "sure",
        "thanks",
        "good point",
        "let me check",
        "back in a minute",
        "no idea, ask around",
        "i was just about to say that",
        "sounds good, talk later then",
    ),
)
