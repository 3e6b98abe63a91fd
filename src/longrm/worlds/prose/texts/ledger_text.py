"""A ledger: dated entries with amounts and remarks."""

from longrm.worlds.prose.generated_text import GeneratedText, themes
from longrm.worlds.prose.word_lists import EVERYDAY, PEOPLE

_THEMES = themes(
    """
    Cash
    Received {number}.40 from {person}, [for the use of {room}|in small change|as agreed in {season}].
    Paid {number}.15 to {person} [against a receipt|for postage|for {few} hours of help].
    The drawer was counted [twice|on {weekday}|by {colleague}] and [is right to the cent|was short by {few} cents].
    A [torn|foreign|folded] note was [taken to the bank|put aside|changed by {colleague}].
    [No receipt was given|The receipt is pinned to this page|The stub is in the blue folder].

    Stationery
    Bought {few} reams of paper and {number} envelopes from the shop on the corner, [at the old price|on account].
    Ordered [labels|binders|ink] for {colleague}, to be [delivered on {weekday}|collected in person].
    {few} packets were [damp|of the wrong size|already open] and went back.
    What is left over from {season} lies in {room} and [has not been counted|should last for {few} months].
    {person} asks for [thicker|cheaper|ruled] paper next time.

    Repairs
    The bill for the {part} came to {number}0.00, [half of it for labor|less than was feared|payable in two parts].
    A deposit of {number}.00 was paid for the {part} in {room}.
    {person} [signed for the work|found one screw missing|asked for the old parts back].
    The guarantee runs for {few} years and [is filed under {colleague}|covers parts only].
    A second visit on {weekday} was [not charged|charged at half the rate|needed after all].

    Rent
    Rent for {room} was paid on {weekday}, [a day late|in advance|by transfer].
    The tenant of {room} [asked for more time|paid in full|owes {number}.00 from {season}].
    A reminder [was sent|went to {person}|will follow] in a plain envelope.
    Water and {part} are [included|billed apart|to be read off the meter by {colleague}].
    The deposit is [held at the bank|returned less {number}.00 for cleaning|still open].

    Deliveries
    {few} crates came on {weekday}, of which one was [broken|empty|meant for next door].
    The driver waited [half an hour|in the rain|with the engine running] until {person} had signed.
    Freight of {number}.60 was [paid on the spot|added to the bill|waived].
    The crates are stacked in {room}, [the heavy ones below|with the labels outward].
    {colleague} returned the pallets and [got {few} back|was given a slip|noted the mileage].

    Wages
    Wages for {few} helpers were paid out by {person}, [all present|one of them by post].
    {colleague} worked {number} hours, [of which {few} at night|most of them in {room}].
    An advance of {number}.00 is to be [taken off in {season}|paid back in {few} parts].
    The tax table was [new|borrowed from next door|out of date], so the sum may [change|be corrected].
    [Gloves|Aprons|Boots for the rain] are no longer charged to the helpers.

    Donations
    A gift of {number}0.00 arrived [without a name|by post|with a kind letter].
    The box in {room} held {number}.85, [mostly in coins|and a button|more than on {weekday}].
    {person} doubled the sum, [as promised|to the surprise of {colleague}].
    A letter of thanks [was written|is still to be written|went out on {weekday}].
    It is meant for the {part}, [if the others agree|and for nothing else].

    Bank
    The statement shows {number} entries, [all of them ticked|two of them unclear|none of them new].
    Interest of {few} and a fee of {number}.20 were booked on {weekday}.
    {person} went to the counter and was told [to come back|that the form had changed|nothing new].
    A transfer to {colleague} was [returned|carried out twice|made a week early].
    The [passbook|card|stamp] is kept in {room} [under lock|until {season}].

    Carried over
    The page was closed with a balance of {number}4.10, [checked by {person}|in pencil|to be checked].
    Two sums on the page were [added twice|corrected|written by {colleague}] and are explained here.
    The error of {few} cents was [found on {weekday}|a slip of the pen|never found].
    A new book begins in {season}, [since the binding is loose|as the law demands].
    What is owed by {person} is [carried over|listed in red|written off].
    """
)

LEDGER = GeneratedText(
    title="ledger",
    about="a cash book: dated entries with sums and remarks",
    head="{date} | {title} | ",
    themes=_THEMES,
    slots={"person": PEOPLE, "colleague": PEOPLE, **EVERYDAY},
    closings=(
        "Checked.",
        "In order.",
        "Booked.",
        "Paid in full.",
        "See the receipt.",
        "Nothing else to note.",
        "The sum was counted twice.",
        "Entered in ink on the same evening.",
        "The next page begins with the same balance.",
    ),
)
