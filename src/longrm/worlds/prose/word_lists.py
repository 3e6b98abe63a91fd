"""The names and values of facts in prose. No kind of text has one of the names; common nouns may stand there, too."""


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
