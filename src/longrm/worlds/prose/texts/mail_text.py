"""Mail: messages with a sender and a subject."""

from longrm.worlds.prose.generated_text import GeneratedText, themes
from longrm.worlds.prose.word_lists import EVERYDAY, PEOPLE

_THEMES = themes(
    """
    Parcel at the desk
    A parcel for you has been at the desk since {weekday}; [it is rather heavy|it needs a signature|the label is torn].
    {person} put it in {room} so that [nobody trips over it|it stays dry|it can be locked away].
    Could you [collect it|send somebody|let me know whose it is] before {season}?
    The courier [tried twice|left a card|was in a great hurry] and [will not come again|asked me to pass this on].
    If the parcel is not yours, [just leave it there|ask {colleague}|we will send it back].

    Draft for comments
    I attach the draft that we talked about on {weekday}; [the tables are still missing|it runs to {number} pages|the last part is rough].
    [Please be frank|Take your time|Do not mind the typing], and write your comments [in the margin|at the end|in another color].
    {person} has read the first half and finds it [too long|clear enough|a little dry].
    I am not sure about the {few} pages on the {part}; [perhaps they should go|they could be an appendix].
    If I hear nothing by {weekday}, I will [send it off|assume that you agree|ask {colleague} instead].
    [Thank you in advance|I owe you a coffee|It is much appreciated].

    Room change
    Our meeting moves to {room}, because [the other one is double-booked|the {part} there has failed|we will be {number} after all].
    The time [stays the same|is now half an hour later|has yet to be confirmed].
    {person} will bring the [projector|printed copies|coffee], and [somebody should help to carry|we need an extension cord].
    [Sorry for the short notice|I know that this is the second change of rooms|I hope this suits everyone].
    Please tell {colleague}, who [never reads mail|is traveling|has a new address].

    Invoice
    We have received your invoice for the {part}, [but the order number is missing|and it will be paid by {weekday}|though not the goods].
    According to our records, [{number} hours were agreed|only {few} visits took place|the discount was left out].
    Would you [send a corrected one|check the bill with {person}|call me when you have a moment]?
    Payment normally takes [two weeks|a fortnight after approval|until the end of the month].
    {colleague} in accounts can [explain the form|answer questions|tell you more] on {weekday}.

    Holiday cover
    I will be away from {weekday} and back in {season}; [{person} covers for me|urgent things go to {colleague}|my phone will be off].
    The {few} open cases are listed on the board in {room}, [the oldest on top|with a note on each].
    [None of them is urgent|Two of them may turn nasty|Most are waiting for an answer].
    The key to the cabinet is [with {colleague}|where it always is|in the usual envelope].
    Please water the plants, [but not too much|at least the large one|if you remember].

    Feedback from the visit
    The visitors were [impressed by|puzzled by|most interested in] {room} and stayed [an hour longer than planned|until late|for lunch].
    {person} showed them the {part}, which [for once worked|made more noise than usual|they had never seen before].
    They asked about [our costs|staff turnover|plans for {season}], and I [said what I could|promised an answer|left that to {colleague}].
    A group of {number} would like to come next time, [which is too many|if we can feed them].
    All in all [it went well|I am relieved|it was worth the trouble].

    Lost property
    Has anybody seen [my gray folder|a charger with a red tag|the spare remote]? I had it on {weekday} in {room}.
    {person} thinks that it was [tidied away|taken by mistake|left on the copier].
    It is [of no great value|needed for the audit|borrowed], so [I would be glad to have it back|no questions will be asked].
    {colleague} found {few} pens and a single glove there, [none of them mine|in case you miss them].

    Training day
    The course takes place on {weekday} in {room}, with [{number} places|a break at noon|two speakers].
    {person} took it last year and [learned a lot|found it too easy|came back with {few} pages of notes].
    Please [sign up|ask your manager|tell me] by {weekday}, [since places go quickly|or your seat goes to somebody else].
    It covers [first aid|the new form|difficult calls] in the morning and the {part} [after lunch|if time allows].
    {colleague} has the [program|handouts|parking permits].

    Re: network trouble
    The network in {room} fails [every {weekday}|whenever it is hot|a few minutes after eight], and [so does|with it] the printer.
    I have restarted everything {few} times, [to no avail|which helps for an hour].
    {person} suspects the {part}, {colleague} [the cable|the weather|the new phones].
    Could a technician [come by|call back|look at the log] before {season}?
    For the time being we [use a cable|work from {room}|write things down by hand].

    Thanks
    Many thanks for [your help on {weekday}|the flowers|stepping in at such short notice].
    Without you and {person} we would [still be stacking boxes|have had to cancel|never have finished].
    The [photographs|figures|thank-you cards] will follow as soon as {colleague} has sorted them.
    [Let us do it again|I hope your back has recovered|The next round is on me] in {season}.
    """
)

MAIL = GeneratedText(
    title="mail",
    about="messages with sender, date and subject",
    head="From: {sender}\nDate: {date}\nSubject: {title}\n\n",
    themes=_THEMES,
    slots={"sender": PEOPLE, "person": PEOPLE, "colleague": PEOPLE, **EVERYDAY},
    closings=(
        "Regards.",
        "Many thanks.",
        "See you soon.",
        "That is all for today.",
        "More on this later.",
        "Do call if anything is unclear.",
        "I will be at my desk all afternoon.",
        "No need to answer if you agree.",
        "Please forgive the length of this message, as always.",
    ),
)
