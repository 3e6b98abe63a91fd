"""Names, values and sayings of facts in prose.

No kind of text contains one of the family names; common nouns may occur there, too.
"""

from collections.abc import Sequence
from typing import NamedTuple


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SURNAMES = _split(
    """
    Abernathy Aldridge Ashworth Atwater Babcock Bainbridge Barlow Beckett Bellamy Blackwood Blakely Bosworth
    Bradshaw Brewster Bridger Brockway Buckley Calloway Cantrell Carlisle Carmody Cavendish Chadwick Chilton
    Clayborne Colby Conway Copeland Corbin Crandall Crawley Crosby Cullen Dalton Danforth Davenport Dempsey
    Denholm Donovan Driscoll Dunbar Eastman Edgerton Ellsworth Emerson Fairbanks Farnham Fenwick Finch Fitzroy
    Fletcher Forsythe Fulton Gaines Galloway Garrison Gentry Gilmore Goddard Granger Greenfield Griswold Hadley
    Halford Hanley Harcourt Hargrove Harlow Hartley Hathaway Hawkins Hensley Hobart Holbrook Hollis Huxley Ingram
    Irving Jarvis Jennings Keaton Kendrick Kimball Kingsley Kirkland Lambert Langley Larkin Lathrop Lawson
    Lockhart Lowell Ludlow Mackenzie Maddox Malone Mansfield Marlowe Maxwell Mayfield Mercer Merrick Middleton
    Monroe Morrison Nash Newcomb Norwood Oakley Osborne Padgett Palmer Parrish Paxton Pemberton Pendleton Pickett
    Prescott Quigley Radcliffe Ramsey Ransom Redmond Remington Ridley Rowland Rutledge Sanderson Sawyer Selby
    Sheldon Sherwood Sinclair Slater Stafford Standish Stanton Sterling Stratton Sutherland Talbot Tanner Thatcher
    Thornton Tilden Townsend Travers Trent Tucker Underwood Vance Vaughn Wadsworth Wakefield Walcott Waverly
    Webster Wentworth Wheeler Whitaker Whitlock Wickham Wilcox Winslow Woodward Wyatt Yates York
    """
)
"""The families that farms, offices and accounts of facts are named after."""

FIRST_NAMES = _split(
    """
    Agnes Albert Alice Andrew Anna Arthur Barbara Beatrice Bernard Caroline Catherine Charles Clara Daniel David
    Dorothy Edith Edward Eleanor Ellen Emma Ernest Eva Florence Frances Frank Frederick George Grace Harold Harriet
    Helen Henry Hugh Irene Isabel Jacob James Jane Joan John Joseph Julia Laura Leonard Louis Louise Lucy Margaret
    Maria Martha Mary Matthew Nancy Nathan Oliver Oscar Patrick Paul Peter Philip Rachel Ralph Rebecca Richard
    Robert Ruth Samuel Sarah Simon Stephen Susan Sylvia Theodore Thomas Victor Vincent Walter William
    """
)

ANIMALS = _split(
    """
    bear beaver camel cat chicken cow crab crow deer dog dolphin donkey duck falcon fox frog goat goose hamster hawk
    horse lamb lion lizard llama monkey moose mouse panda parrot penguin pig pigeon pony rabbit raccoon raven rooster
    seal sheep snake spider squirrel swan tiger tortoise turkey turtle whale wolf zebra
    """
)
CITIES = _split(
    """
    Amsterdam Athens Baghdad Bangkok Barcelona Beijing Berlin Boston Brussels Budapest Cairo Chicago Copenhagen
    Dallas Delhi Denver Dublin Geneva Glasgow Hamburg Havana Helsinki Houston Istanbul Jakarta Jerusalem Kyoto
    Lagos Lima Lisbon London Madrid Manila Melbourne Miami Milan Montreal Moscow Mumbai Munich Nairobi Naples Oslo
    Paris Philadelphia Phoenix Prague Quebec Rome Seattle Seoul Shanghai Singapore Stockholm Sydney Tehran Tokyo
    Toronto Vancouver Venice Vienna Warsaw Zurich
    """
)
CROPS = _split(
    """
    apples apricots bananas barley beans beets blueberries broccoli cabbage carrots celery cherries chestnuts
    corn cotton cucumbers dates figs flax garlic ginger grapes hops lavender lemons lentils lettuce limes maize
    mangoes melons mint mushrooms mustard oats olives onions oranges parsley peaches peanuts pears peas peppers
    pineapples plums potatoes pumpkins radishes rice rye saffron soybeans spinach strawberries sugar sunflowers
    tea tobacco tomatoes turnips wheat
    """
)
INSTRUMENTS = _split(
    """
    accordion banjo bass bell bugle cello clarinet cornet drum fiddle flute gong guitar harmonica harp horn lute lyre
    mandolin marimba oboe organ piano piccolo recorder saxophone sitar tambourine triangle trombone trumpet tuba
    ukulele viola violin whistle xylophone
    """
)
GOODS = _split(
    """
    baskets batteries beds bells belts bicycles blankets boots bottles bowls bricks brooms brushes buckets buttons
    cables candles carpets chairs clocks coats coins curtains dolls doors drums dresses fans flags forks frames gloves
    guitars hammers hats helmets hooks jars kettles kites knives ladders lamps lanterns locks mirrors nails needles
    ovens pens pianos pillows pipes plates pots pumps puppets robots ropes rugs saddles scissors shirts shoes soaps
    socks spoons stamps stools stoves swords tents tiles tools toys umbrellas vases wheels whistles windows
    """
)
CODEWORDS = _split(
    """
    amber anchor arrow autumn badger blossom bridge butterfly canyon castle comet compass copper coral cotton
    crystal diamond dragon eagle echo ember emerald falcon feather forest galaxy garden glacier granite harbor
    horizon island ivory jasmine jungle lantern lemon magnet maple marble meadow meteor midnight mirror mountain
    ocean olive orchid oyster pearl pepper phoenix planet prairie pyramid rainbow river rocket saffron sapphire
    shadow silver spiral summit sunset temple thunder timber tulip tunnel turtle valley velvet violet volcano
    walnut willow window winter zebra
    """
)


class Family(NamedTuple):
    """Facts whose values are of one sort.

    Attributes:
        noun: What the subjects are.
        values: What the values are drawn from.
        sayings: What is said of a subject, with `{}` for the value, and the question for it, with `{}` for the subject.
    """

    noun: str
    values: Sequence[str]
    sayings: Sequence[tuple[str, str]]


FAMILIES = (
    Family(
        "family",
        ANIMALS,
        (
            ("bought a {} at the spring fair", "Which animal did {} buy at the spring fair?"),
            ("lost a {} in the storm", "Which animal did {} lose in the storm?"),
            ("gave a {} to the school", "Which animal did {} give to the school?"),
            ("has a {} on its coat of arms", "Which animal does {} have on its coat of arms?"),
            ("found a {} behind the stove", "Which animal did {} find behind the stove?"),
            ("named its boat after a {}", "After which animal did {} name its boat?"),
            ("taught a {} to open the gate", "Which animal did {} teach to open the gate?"),
            ("was photographed with a {}", "With which animal was {} photographed?"),
        ),
    ),
    Family(
        "company",
        CITIES,
        (
            ("has its office in {}", "In which city does {} have its office?"),
            ("opened a branch in {}", "In which city did {} open a branch?"),
            ("lost a lawsuit in {}", "In which city did {} lose a lawsuit?"),
            ("rents a warehouse in {}", "In which city does {} rent a warehouse?"),
            ("was founded in {}", "In which city was {} founded?"),
            ("prints its catalog in {}", "In which city does {} print its catalog?"),
            ("sends its apprentices to {}", "To which city does {} send its apprentices?"),
            ("held its annual dinner in {}", "In which city did {} hold its annual dinner?"),
        ),
    ),
    Family(
        "farm",
        CROPS,
        (
            ("grows {} behind the barn", "What does {} grow behind the barn?"),
            ("sells {} at the market", "What does {} sell at the market?"),
            ("won a prize for its {}", "For what did {} win a prize?"),
            ("feeds its pigs with {}", "With what does {} feed its pigs?"),
            ("ran out of {} before the holidays", "Of what did {} run out before the holidays?"),
            ("delivers {} to the hospital", "What does {} deliver to the hospital?"),
            ("stores {} in the old chapel", "What does {} store in the old chapel?"),
            ("planted {} along the road", "What did {} plant along the road?"),
        ),
    ),
    Family(
        "workshop",
        GOODS,
        (
            ("makes {} for the theater", "What does {} make for the theater?"),
            ("repairs {} for the army", "What does {} repair for the army?"),
            ("delivered {} to the hotel", "What did {} deliver to the hotel?"),
            ("ships {} to the islands", "What does {} ship to the islands?"),
            ("paints {} by hand", "What does {} paint by hand?"),
            ("sold {} at a loss", "What did {} sell at a loss?"),
            ("gave up making {} last year", "What did {} give up making last year?"),
            ("was praised for its {}", "For what was {} praised?"),
        ),
    ),
    Family(
        "orchestra",
        INSTRUMENTS,
        (
            (
                "is looking for somebody who plays the {}",
                "{} is looking for somebody who plays which instrument?",
            ),
            ("sold the {} to a pupil", "Which instrument did {} sell to a pupil?"),
            ("left the {} on the train", "Which instrument did {} leave on the train?"),
            ("begins every concert with the {}", "With which instrument does {} begin every concert?"),
            ("is known for its {}", "For which instrument is {} known?"),
            ("had the {} repaired", "Which instrument did {} have repaired?"),
            ("borrowed the {} from the church", "Which instrument did {} borrow from the church?"),
            ("keeps a spare {} in the van", "Of which instrument does {} keep a spare one in the van?"),
        ),
    ),
    Family(
        "account",
        CODEWORDS,
        (
            ("was opened with the password {}", "With which password was {} opened?"),
            ("is filed under the word {}", "Under which word is {} filed?"),
            ("goes by the nickname {}", "By which nickname does {} go?"),
            ("was locked after the password {} was tried", "After which password was tried was {} locked?"),
            ("carries the label {} in the archive", "Which label does {} carry in the archive?"),
            ("is closed with the keyword {}", "With which keyword is {} closed?"),
            ("was renamed {} by mistake", "What was {} renamed by mistake?"),
            ("answers to the keyword {} only", "To which keyword alone does {} answer?"),
        ),
    ),
)
