"""The fixed facts of the small world: word, article and property tables that chat.py renders into conversations."""

CAPITALS = dict(x.split(":") for x in """France:Paris England:London Germany:Berlin Italy:Rome Spain:Madrid Austria:Vienna
Norway:Oslo Ireland:Dublin Portugal:Lisbon Japan:Tokyo Egypt:Cairo Peru:Lima Canada:Ottawa Switzerland:Bern Poland:Warsaw
Korea:Seoul Kenya:Nairobi Ecuador:Quito Greece:Athens China:Beijing Chile:Santiago Sweden:Stockholm Finland:Helsinki
Denmark:Copenhagen Latvia:Riga Hungary:Budapest Belgium:Brussels Cuba:Havana Russia:Moscow Turkey:Ankara""".split())

# animal: sound verb, home, food, legs, what it is
ANIMALS = {a: (s, h, f, int(n), k) for a, s, h, f, n, k in (line.split(",") for line in """dog,barks,a kennel,meat,4,pet
cat,meows,a house,fish,4,pet
cow,moos,a barn,grass,4,farm animal
horse,neighs,a stable,hay,4,farm animal
pig,grunts,a sty,corn,4,farm animal
sheep,bleats,a field,grass,4,farm animal
duck,quacks,a pond,weeds,2,bird
hen,clucks,a coop,seeds,2,bird
owl,hoots,a hollow tree,mice,2,bird
lion,roars,the savanna,meat,4,wild cat
wolf,howls,the forest,meat,4,wild animal
frog,croaks,a pond,flies,4,small animal
bee,buzzes,a hive,nectar,6,insect
mouse,squeaks,a hole,cheese,4,small animal
snake,hisses,the grass,mice,0,reptile
bear,growls,a cave,berries,4,wild animal
crow,caws,a nest,seeds,2,bird
goat,bleats,a farm,grass,4,farm animal
rabbit,squeaks,a burrow,carrots,4,small animal
fox,barks,a den,rabbits,4,wild animal
elephant,trumpets,the savanna,leaves,4,wild animal
monkey,chatters,the jungle,bananas,4,wild animal""".split("\n"))}

THINGS = {t: c for c, ts in {
    "red": "tomato strawberry cherry rose brick", "yellow": "banana lemon sun canary", "green": "grass leaf cucumber pea frog",
    "blue": "sky sea", "orange": "carrot pumpkin", "white": "snow milk salt cloud swan", "black": "coal night crow",
    "brown": "wood chocolate bear", "grey": "elephant stone", "pink": "pig flamingo"}.items() for t in ts.split()}

# job: what the person does, where
JOBS = {j: (d, w) for j, d, w in (line.split(",") for line in """baker,bakes bread,in a bakery
teacher,teaches children,at a school
doctor,helps sick people,in a hospital
farmer,grows food,on a farm
nurse,cares for patients,in a hospital
pilot,flies planes,in the air
fisher,catches fish,at sea
painter,paints pictures,in a studio
cook,cooks meals,in a kitchen
driver,drives a bus,on the road
writer,writes books,at a desk
gardener,looks after plants,in a garden
carpenter,makes things from wood,in a workshop
plumber,fixes pipes,in houses
singer,sings songs,on a stage
librarian,looks after books,in a library
programmer,writes programs,at a computer
judge,decides cases,in a court
sailor,sails ships,at sea
tailor,makes clothes,in a shop""".split("\n"))}

# person: town, job, pet animal, pet's name, favourite food, favourite colour, age
CAST = {p: (t, j, a, n, f, c, int(y)) for p, t, j, a, n, f, c, y in (line.split(",") for line in """Anna,Millbrook,baker,cat,Pip,apple pie,blue,34
Ben,Oakford,farmer,dog,Rex,bread and cheese,green,45
Clara,Rivermouth,doctor,rabbit,Dot,soup,white,39
Daniel,Stonebridge,teacher,owl,Sage,pancakes,brown,52
Eva,Millbrook,painter,cat,Inky,salad,purple,28
Felix,Harborview,sailor,dog,Salty,fish and chips,black,41
Greta,Oakford,nurse,horse,Star,rice,red,31
Hugo,Stonebridge,carpenter,dog,Bruno,potatoes,orange,60
Ines,Rivermouth,singer,duck,Lulu,ice cream,pink,25
Jonas,Harborview,fisher,cat,Tuna,grilled fish,grey,48
Kira,Millbrook,programmer,mouse,Bit,pizza,green,29
Lucas,Oakford,driver,goat,Max,noodles,yellow,37""".split("\n"))}

# town: what it lies by, what it is known for
TOWNS = {"Millbrook": ("a small brook", "its old mill"), "Oakford": ("a wide forest", "its tall oaks"),
         "Rivermouth": ("a river", "its market"), "Stonebridge": ("the hills", "its stone bridge"),
         "Harborview": ("the sea", "its harbor")}

DEFINITIONS = dict(line.split(":") for line in """river:a long stream of water that flows to the sea
mountain:a very high hill
island:a piece of land with water all around it
forest:a large place full of trees
desert:a dry place with very little rain
village:a small group of houses, smaller than a town
town:a place with many houses and shops
city:a very large town
rain:water that falls from the clouds
snow:frozen water that falls in soft white flakes
wind:moving air
cloud:a mass of tiny drops of water in the sky
storm:very bad weather with strong wind and rain
rainbow:an arc of colours in the sky after rain
winter:the coldest season of the year
summer:the warmest season of the year
spring:the season when plants begin to grow
autumn:the season when leaves fall
bread:a food made from flour and water
cheese:a food made from milk
butter:a soft yellow food made from cream
honey:a sweet food that bees make
soup:a hot liquid food made with vegetables or meat
fruit:the sweet part of a plant that holds its seeds
vegetable:a plant that people eat
breakfast:the first meal of the day
lunch:the meal in the middle of the day
dinner:the main meal in the evening
book:a set of pages with words or pictures
library:a place where people borrow books
school:a place where children learn
hospital:a place where sick people get help
market:a place where people buy and sell things
bridge:something built over a river or road so that people can cross it
clock:a thing that shows the time
map:a drawing that shows where places are
key:a small piece of metal that opens a lock
lamp:a thing that gives light
chair:a seat for one person
table:a flat top on legs, or rows and columns of data
house:a building where people live
garden:a piece of land where plants grow
friend:a person whom you like and trust
family:a group of people who belong together
neighbour:a person who lives near you
teacher:a person who helps others learn
doctor:a person who helps sick people
computer:a machine that follows instructions
program:a list of instructions for a computer
compiler:a program that turns code into a form that a machine can run
language model:a program that predicts the next piece of a text
token:a small piece of text
adapter:a small set of extra weights that teaches a model a new skill
database:a place where data is kept in order
query:a question that you ask a database
SQL:a language for asking questions of tables
JSON:a way to write data as names and values
Cypher:a language for asking questions of graphs
graph:a set of points with links between them
number:a word or sign that says how many
word:a group of letters with a meaning
sentence:a group of words that says something
question:a sentence that asks for something
promise:what you say when you will surely do something
secret:something that only a few people know
music:sounds that are nice to hear
song:a piece of music with words
game:something that people play for fun
holiday:a time when people do not work
birthday:the day on which a person was born
week:a time of seven days
month:one of the twelve parts of a year
year:a time of twelve months
hour:a time of sixty minutes
minute:a time of sixty seconds""".split("\n"))

HOWTO = dict(line.split(":") for line in """make tea:Boil some water. Put a tea bag in a cup. Pour the water over it, wait three minutes, and take the bag out.
make coffee:Put ground coffee in a filter. Pour hot water over it slowly, and let it drip into a cup.
boil an egg:Put the egg in boiling water. Wait eight minutes. Then cool it under cold water.
make a sandwich:Take two slices of bread. Put butter and cheese on one slice, and lay the other on top.
make pancakes:Mix flour, milk and eggs. Pour a little into a hot pan. Turn it once, and eat it warm.
make soup:Cut some vegetables. Boil them in water with salt for twenty minutes. Stir, and serve it hot.
bake bread:Mix flour, water, salt and yeast. Let the dough rise for an hour. Bake it until it is brown.
plant a tree:Dig a hole. Put the young tree in it, fill the hole with earth, and water it well.
grow tomatoes:Put the seeds in earth, give them sun and water every day, and tie the plants to a stick.
wash a car:Rinse the car with water. Wash it with soap and a soft cloth, rinse it again, and dry it.
clean a window:Wipe the window with soapy water, then dry it with a clean cloth.
write a letter:Start with a greeting. Say what you want to say in short sentences, and end with your name.
learn a language:Learn a few words each day. Read, listen and speak as often as you can.
fall asleep:Turn off the light, put away your phone, and breathe slowly.
tie a knot:Cross the two ends, pull one end through the loop, and pull both ends tight.
ride a bike:Sit on the bike, push one pedal down, look ahead, and keep moving so that you stay upright.
save money:Write down what you spend, buy only what you need, and put a little aside every month.
make a friend:Say hello, ask a question, listen to the answer, and be kind.
feed a cat:Put some cat food in a bowl, and a bowl of fresh water next to it.
draw a house:Draw a square. Put a triangle on top for the roof, and add a door and two windows.
stay warm:Put on a coat, a hat and gloves, and drink something hot.
cook rice:Put one cup of rice in two cups of water. Boil it gently for fifteen minutes with the lid on.
send a parcel:Pack the thing in a box, write the address on it, and take it to the post office.
read a map:Find where you are, find where you want to go, and follow the roads between them.""".split("\n"))

OPPOSITES = dict(x.split(":") for x in """hot:cold big:small tall:short fast:slow old:young happy:sad day:night
up:down open:closed full:empty hard:soft light:dark wet:dry rich:poor loud:quiet near:far early:late strong:weak
clean:dirty good:bad left:right first:last high:low thick:thin easy:difficult""".split())
OPPOSITES.update({v: k for k, v in list(OPPOSITES.items())})

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty""".split()

WEATHER = {"sunny": ("the sun shines", "wear a hat"), "rainy": ("it rains", "take an umbrella"),
           "snowy": ("it snows", "put on warm boots"), "windy": ("the wind blows", "wear a jacket"),
           "cloudy": ("the sky is grey", "take a coat just in case"), "foggy": ("it is hard to see far", "walk with care")}

GROUPS = {"animals": list(ANIMALS), "colours": "red blue green yellow black white brown orange pink purple".split(),
          "fruits": "apple banana cherry pear plum orange grape lemon melon peach".split(),
          "vegetables": "carrot pea onion potato cabbage bean tomato cucumber".split(), "jobs": list(JOBS),
          "countries": list(CAPITALS), "towns": list(TOWNS), "days": DAYS, "months": MONTHS,
          "drinks": "water tea coffee milk juice cocoa lemonade".split()}

OBJECTS = "ball box cup hat book lamp key coat bag chair kite bike car boat bell ring clock spoon plate pen".split()

# words that the model may be asked about and has nothing to say on
OTHER = """love time money power space art history science math physics chemistry biology philosophy politics law truth beauty
freedom peace war health sleep luck fear hope anger joy success business marketing football tennis chess cinema theatre poetry
fashion travel energy electricity gravity light sound heat magic nature evolution climate pollution plastic steel iron copper
glass oil gas coal sugar wine beer sushi pasta curry chocolate internet email software hardware robots rockets satellites
planets stars galaxies dinosaurs dragons ghosts pirates kings queens castles pyramids volcanoes earthquakes oceans rivers
bridges trains planes ships bicycles engines batteries phones cameras television radio newspapers taxes banks insurance
inflation medicine vaccines bacteria viruses cells genes atoms molecules lasers magnets algebra geometry logic statistics
grammar spelling Latin Python Rust Java Linux Europe Africa Asia America Mars Venus Jupiter the moon the brain the heart
the universe the economy the weather on Mars the Romans the Vikings quantum mechanics machine learning deep learning""".replace("\n", " ")
OTHER = [w for w in OTHER.replace("the weather on Mars", "").replace("the ", "the_").replace("quantum ", "quantum_").replace(
    "machine l", "machine_l").replace("deep l", "deep_l").split()]
OTHER = [w.replace("_", " ") for w in OTHER]

TASKS = [f"{v} {o}" for v in "fix build buy sell find paint open choose move break lift hide".split() for o in
         """a bike;a boat;a car;a roof;a door;a wall;a radio;a robot;a computer;a guitar;a bed;a phone;a piano;a house;a watch;
a ladder""".replace("\n", "").split(";")]

FEELINGS = {"sad": "I am sorry to hear that. A walk or a talk with a friend may help.", "tired": "Then you should rest a little.",
            "hungry": "Then you should eat something, such as bread or soup.", "thirsty": "Then you should drink some water.",
            "bored": "You could read a book or take a walk.", "happy": "That is nice to hear.", "cold": "Put on a coat, and drink something hot.",
            "angry": "Breathe slowly, and wait a little before you speak.", "sick": "I am sorry to hear that. You should rest, and see a doctor.",
            "lonely": "I am sorry to hear that. You could call a friend.", "busy": "Do one thing at a time, and take a short break.",
            "lost": "Look at a map, or ask somebody for the way."}
