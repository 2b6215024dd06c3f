"""Conversations of the small world as lists of (role, text), rendered from templates with a seeded generator."""

import random

import queries
from facts import (ANIMALS, CAPITALS, CAST, DAYS, DEFINITIONS, FEELINGS, GROUPS, HOWTO, JOBS, MONTHS, NUMBERS, OBJECTS,
                   OPPOSITES, OTHER, TASKS, THINGS, TOWNS, WEATHER)
from names import CITIES, COLOURS, PEOPLE, invented

SYSTEMS = ["You are a helpful assistant.", "You are Rusty's demo model.", "Answer in short sentences.",
           "You are a friendly assistant.", "Be brief and kind."]


def a(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def cap(s):
    return s[0].upper() + s[1:]


def person(r):
    return invented(r) if r.random() < 0.4 else r.choice(PEOPLE)


def greet(r):
    q = r.choice(["Hello", "Hi", "Hello!", "Hi!", "Hey", "Hi there", "Good morning", "Good evening", "hello", "hi", "Hello there!"])
    if q.startswith("Good"):
        return q, f"{q}! How can I help you?"
    return q, "Hello! How can I help you?"


def smalltalk(r):
    return r.choice([
        (["How are you?", "How are you today?", "how are you", "How is it going?", "Are you well?"], "I am well, thank you. How can I help you?"),
        (["Thank you", "Thanks!", "Thank you very much.", "thanks", "Thank you!"], "You are welcome."),
        (["Bye", "Goodbye", "See you later!", "Goodbye!", "Good night"], "Goodbye! Have a nice day."),
        (["Who are you?", "What are you?", "What is your name?", "who are you", "Tell me about yourself.", "Are you a person?", "Introduce yourself."],
         "I am Rusty's demo model, a very small language model."),
        (["What can you do?", "Can you help me?", "What do you know?", "How can you help me?", "Help", "What can I ask you?"],
         "I can chat about a small world of people, animals, towns, food and weather, and I can do simple sums."),
        (["Who made you?", "How were you made?", "Where do you come from?"], "I was trained from scratch on simple sentences to show what Rusty can do."),
        (["What is Rusty?", "What does Rusty do?", "Tell me about Rusty.", "What is Rusty"], "Rusty is an engine that compiles language models and runs them on many devices."),
        (["How big are you?", "Are you big?", "How many parameters do you have?"], "I am very small. I have about five million parameters."),
        (["Tell me a joke.", "Tell me a joke", "Do you know a joke?", "Make me laugh."], "Why did the clock go to school? It wanted to learn about time."),
        (["Are you happy?", "Do you have feelings?", "Are you alive?"], "I am only a program, so I do not have feelings."),
        (["What is the meaning of life?", "Why are we here?"], "That is a big question. I think being kind is a good start."),
        (["Sing a song.", "Can you sing?", "Sing something"], "I cannot sing, but I can tell you a short story."),
        (["Yes", "Yes.", "Ok", "Okay", "OK", "Good", "Great!"], "Good. What would you like to know?"),
        (["No", "No.", "Never mind"], "All right. Just ask if you need anything."),
        (["What is an adapter?", "What do adapters do?"], "An adapter is a small set of extra weights that teaches a model a new skill."),
    ])


def small(r):
    qs, ans = smalltalk(r)
    return r.choice(qs), ans


def capital(r):
    c, t = r.choice(list(CAPITALS.items()))
    if r.random() < 0.25:
        return r.choice([f"{t} is the capital of which country?", f"Where is {t}?", f"Which country is {t} in?"]), f"{t} is the capital of {c}."
    return r.choice([f"What is the capital of {c}?", f"Tell me the capital of {c}.", f"what is the capital of {c}",
                     f"Which city is the capital of {c}?", f"Capital of {c}?"]), f"The capital of {c} is {t}."


def animal(r):
    n = r.choice(list(ANIMALS))
    s, h, f, legs, k = ANIMALS[n]
    few = "no legs" if legs == 0 else f"{NUMBERS[legs]} legs"
    return r.choice([
        (r.choice([f"What sound does {a(n)} make?", f"What does {a(n)} do when it makes a noise?", f"Which sound does the {n} make?"]), f"{cap(a(n))} {s}."),
        (r.choice([f"Where does {a(n)} live?", f"Where do you find {a(n)}?", f"What is the home of {a(n)}?"]), f"{cap(a(n))} lives in {h}."),
        (r.choice([f"What does {a(n)} eat?", f"What food does {a(n)} like?"]), f"{cap(a(n))} eats {f}."),
        (r.choice([f"How many legs does {a(n)} have?", f"how many legs does {a(n)} have"]), f"{cap(a(n))} has {few}."),
        (r.choice([f"What is {a(n)}?", f"What kind of animal is {a(n)}?"]), f"{cap(a(n))} is {a(k)}."),
        (r.choice([f"Tell me about the {n}.", f"Tell me about {a(n)}", f"What do you know about the {n}?"]),
         f"{cap(a(n))} is {a(k)}. It has {few}, lives in {h} and eats {f}."),
    ])


def cast(r):
    n = r.choice(list(CAST))
    town, job, pet, pn, food, col, age = CAST[n]
    return r.choice([
        (r.choice([f"Where does {n} live?", f"Which town does {n} live in?", f"Where is {n} from?"]), f"{n} lives in {town}."),
        (r.choice([f"What is {n}'s job?", f"What does {n} do?", f"What job does {n} have?"]), f"{n} is {a(job)}. {n} {JOBS[job][0]}."),
        (r.choice([f"Does {n} have a pet?", f"What pet does {n} have?", f"What is the name of {n}'s pet?"]), f"{n} has {a(pet)} called {pn}."),
        (r.choice([f"What does {n} like to eat?", f"What is {n}'s favourite food?"]), f"{n} likes to eat {food}."),
        (r.choice([f"What is {n}'s favourite colour?", f"Which colour does {n} like?"]), f"{n}'s favourite colour is {col}."),
        (r.choice([f"How old is {n}?", f"What is {n}'s age?"]), f"{n} is {age} years old."),
        (r.choice([f"Who is {n}?", f"Tell me about {n}.", f"Do you know {n}?"]), f"{n} is {a(job)} from {town}. {n} has {a(pet)} called {pn}."),
    ])


def town(r):
    t = r.choice(list(TOWNS))
    by, known = TOWNS[t]
    who = [p for p, v in CAST.items() if v[0] == t]
    return r.choice([
        (r.choice([f"Where is {t}?", f"Where does {t} lie?"]), f"{t} lies by {by}."),
        (r.choice([f"What is {t} known for?", f"Why is {t} famous?"]), f"{t} is known for {known}."),
        (r.choice([f"Who lives in {t}?", f"Which people live in {t}?"]), f"{', '.join(who[:-1])} and {who[-1]} live in {t}."),
        (r.choice([f"Tell me about {t}.", f"What is {t}?"]), f"{t} is a town by {by}. It is known for {known}."),
    ])


def job(r):
    j = r.choice(list(JOBS))
    d, w = JOBS[j]
    return r.choice([
        (r.choice([f"What does {a(j)} do?", f"What is the job of {a(j)}?", f"What is {a(j)}?"]), f"{cap(a(j))} {d}."),
        (r.choice([f"Where does {a(j)} work?", f"Where do you find {a(j)}?"]), f"{cap(a(j))} works {w}."),
        (f"Who {d}?", f"{cap(a(j))} {d}."),
    ])


def colour(r):
    t, c = r.choice(list(THINGS.items()))
    return r.choice([f"What colour is the {t}?", f"Which colour does the {t} have?", f"Which colour is the {t}?",
                     f"what color is the {t}"]), f"The {t} is {c}."


def definition(r):
    w, d = r.choice(list(DEFINITIONS.items()))
    bare = w in {"SQL", "JSON", "Cypher", "rain", "snow", "wind", "bread", "cheese", "butter", "honey", "soup", "music",
                 "winter", "summer", "spring", "autumn", "breakfast", "lunch", "dinner", "fruit"}
    x = w if bare else a(w)
    return r.choice([f"What is {x}?", f"what is {x}", f"Explain what {x} is.", f"What does the word {w} mean?", f"Define {w}.",
                     f"Can you tell me what {x} is?"]), f"{cap(x)} is {d}."


def howto(r):
    w, d = r.choice(list(HOWTO.items()))
    return r.choice([f"How do I {w}?", f"How can I {w}?", f"Tell me how to {w}.", f"how do you {w}", f"How to {w}?",
                     f"What is the best way to {w}?", f"I want to {w}. What should I do?"]), d


def arithmetic(r):
    roll = r.random()
    if roll < 0.4:
        x, y = r.randint(0, 20), r.randint(0, 20)
        q, s = r.choice([f"What is {x} plus {y}?", f"{x} + {y}", f"What is {x} + {y}?", f"Add {x} and {y}.", f"How much is {x} plus {y}?"]), f"{x} plus {y} is {x + y}."
    elif roll < 0.6:
        x = r.randint(0, 20)
        y = r.randint(0, x)
        q, s = r.choice([f"What is {x} minus {y}?", f"{x} - {y}", f"What is {x} - {y}?", f"Take {y} from {x}."]), f"{x} minus {y} is {x - y}."
    elif roll < 0.8:
        x, y = r.randint(0, 10), r.randint(0, 10)
        q, s = r.choice([f"What is {x} times {y}?", f"{x} * {y}", f"How much is {x} times {y}?"]), f"{x} times {y} is {x * y}."
    elif roll < 0.9:
        x, y = r.sample(range(0, 100), 2)
        q, s = r.choice([f"Which is bigger, {x} or {y}?", f"Is {x} or {y} bigger?"]), f"{max(x, y)} is bigger than {min(x, y)}."
    else:
        x = r.randint(0, 19)
        q, s = r.choice([(f"What number comes after {x}?", f"{x + 1} comes after {x}."), (f"How do you write {x} as a word?", f"{x} is written as {NUMBERS[x]}.")])
    return q, s


def calendar(r):
    names, what = r.choice([(DAYS, "day"), (MONTHS, "month")])
    i = r.randrange(len(names))
    n = len(names)
    return r.choice([
        (r.choice([f"What {what} comes after {names[i]}?", f"Which {what} follows {names[i]}?"]), f"{names[(i + 1) % n]} comes after {names[i]}."),
        (r.choice([f"What {what} comes before {names[i]}?", f"Which {what} is before {names[i]}?"]), f"{names[i - 1]} comes before {names[i]}."),
        (f"If today is {DAYS[i % 7]}, what day is tomorrow?", f"If today is {DAYS[i % 7]}, tomorrow is {DAYS[(i + 1) % 7]}."),
        ("How many days are in a week?", "There are seven days in a week."),
        ("How many months are in a year?", "There are twelve months in a year."),
        ("Name the days of the week.", "The days of the week are " + ", ".join(DAYS[:-1]) + " and Sunday."),
    ])


def opposite(r):
    w, o = r.choice(list(OPPOSITES.items()))
    return r.choice([f"What is the opposite of {w}?", f"Opposite of {w}?", f"What is the opposite of the word {w}?"]), f"The opposite of {w} is {o}."


def weather(r):
    w, (d, adv) = r.choice(list(WEATHER.items()))
    return r.choice([
        (r.choice([f"What should I do when it is {w}?", f"It is {w} today. What should I do?", f"What do I need on a {w} day?"]), f"When it is {w}, {adv}."),
        (r.choice([f"What happens on a {w} day?", f"What does {w} mean?"]), f"On a {w} day, {d}."),
        (r.choice(["What is the weather like?", "How is the weather today?", "What is the weather today?"]), "I cannot look outside, so I do not know the weather today."),
    ])


def listing(r):
    g = r.choice(list(GROUPS))
    n = r.choice([2, 3, 3, 4, 5])
    items = r.sample(GROUPS[g], n)
    return r.choice([f"Name {NUMBERS[n]} {g}.", f"Give me {n} {g}.", f"List {NUMBERS[n]} {g}.", f"Can you name {NUMBERS[n]} {g}?"]), \
        f"Here are {NUMBERS[n]} {g}: " + ", ".join(items[:-1]) + f" and {items[-1]}."


def unknown(r):
    """Things outside the small world: the answer says so, with the words of the question."""
    w = invented(r)
    low = w.lower()
    x = r.choice(OTHER) if r.random() < 0.6 else low
    y = r.choice(TASKS) if r.random() < 0.6 else f"{r.choice(['make', 'use', 'get', 'play', 'cook'])} {a(low)}"
    verb, p = r.choice(["invented", "discovered", "painted", "won", "wrote", "built"]), person(r)
    much = f"I do not know much about {x}. I only know a small world."
    return r.choice([
        (r.choice([f"Who is {w}?", f"Who was {w}?"]), f"I do not know who {w} is."),
        (f"What is {a(low)}?", f"I do not know what {a(low)} is."), (f"Where is {w}?", f"I do not know where {w} is."),
        (r.choice([f"What is {x}?", f"Tell me about {x}.", f"Explain {x}.", f"What do you know about {x}?", f"How does {x} work?",
                   f"Why is {x} important?", f"what is {x}", f"What do you think about {x}?", f"Write about {x}."]), much),
        (r.choice([f"What is {x}?", f"Tell me about {x}.", f"What do you know about {x}?"]), much),
        (r.choice([f"How do I {y}?", f"How can I {y}?", f"Tell me how to {y}."]), f"I do not know how to {y}."),
        (f"Who {verb} {x}?", f"I do not know who {verb} {x}."),
        (f"Do you like {x}?", f"I am only a program, but some people like {x}."),
        (f"What is the capital of {w}?", f"I do not know the capital of {w}."),
        (f"How old is {p} {w}?", f"I do not know how old {p} {w} is."),
    ])


def feeling(r):
    f, s = r.choice(list(FEELINGS.items()))
    return r.choice([f"I am {f}.", f"I feel {f}.", f"I am so {f} today.", f"What should I do when I am {f}?"]), s


def yes_no(r):
    """Yes-or-no questions about the facts; half of them are wrong."""
    t, n, c = r.choice(list(THINGS)), r.choice(list(ANIMALS)), r.choice(list(CAPITALS))
    s, home, food, legs, _ = ANIMALS[n]
    other = r.choice(list(ANIMALS))
    (ask, right, value), wrong = r.choice([
        (("Is the {t} {v}?", "the {t} is {v}.", THINGS[t]), r.choice(list(THINGS.values()))),
        (("Does {n} live in {v}?", "{n} lives in {v}.", home), ANIMALS[other][1]),
        (("Does {n} eat {v}?", "{n} eats {v}.", food), ANIMALS[other][2]),
        (("Is {v} the capital of {c}?", "the capital of {c} is {v}.", CAPITALS[c]), r.choice(list(CAPITALS.values()))),
    ])
    said = value if r.random() < 0.5 else wrong
    names = {"t": t, "n": a(n), "c": c}
    return ask.format(v=said, **names), ("Yes, " if said == value else "No, ") + right.format(v=value, **names)


def advice(r):
    foods = r.sample(["soup", "pancakes", "rice", "a sandwich", "bread and cheese", "salad", "noodles", "pizza"], 3)
    meal = r.choice(["dinner", "lunch", "breakfast"])
    return r.choice([
        (r.choice([f"What should I eat for {meal}?", f"What can I cook for {meal}?", f"I need an idea for {meal}."]), f"You could have {foods[0]}, {foods[1]} or {foods[2]} for {meal}."),
        (r.choice(["What should I do today?", "I have a free day. What should I do?", "What can I do at the weekend?"]), "You could read a book, take a walk or visit a friend."),
        (r.choice(["Which book should I read?", "Can you recommend a book?"]), "I do not know many books. A librarian can help you to find a good one."),
        (r.choice(["What time is it?", "What is the time?", "What day is it today?"]), "I do not have a clock, so I do not know."),
        (r.choice(["Give me some advice.", "How can I be happy?", "What is a good life?"]), "Be kind, sleep well, and take a walk every day."),
        (r.choice(["Write a poem.", "Write a poem about the sea.", "Tell me a poem."]), "The sea is blue, the sand is white, the sun goes down, and then comes night."),
        (r.choice(["Tell me something.", "Tell me something interesting.", "Tell me a fact."]), "A bee has six legs, and it makes honey."),
    ])


def story(r):
    n, k, p = r.choice(list(ANIMALS)), r.choice(list(ANIMALS)), person(r)
    o, t = r.choice(OBJECTS), r.choice(list(TOWNS))
    c = r.choice(COLOURS[:10])
    if r.random() < 0.5:
        return r.choice([f"Tell me a story about {a(n)}.", f"Write a short story about {a(n)}.", f"Tell me a short story about {a(n)}"]), \
            (f"Once there was {a(n)} who lived in {ANIMALS[n][1]}. One day it found {a(c)} {o}. "
             f"It gave the {o} to {a(k)}, and they became good friends.")
    return r.choice([f"Tell me a story about {p}.", f"Write a story about {p} and {a(n)}."][:1 if r.random() < .5 else 2]), \
        (f"Once {p} walked to {t} and lost {a(c)} {o}. A kind {k} found the {o} and brought it back. {p} was very happy.")


def reading(r):
    """Questions about what the message itself says: only attention to the text can answer them."""
    p, q = person(r), person(r)
    o1, o2 = r.sample(OBJECTS, 2)
    c1, c2 = r.sample(COLOURS, 2)
    n1, n2 = r.randint(2, 99), r.randint(2, 99)
    city = r.choice(CITIES) if r.random() < 0.6 else invented(r)
    text, qa = r.choice([
        (f"{p} has {a(c1)} {o1} and {a(c2)} {o2}.", [(f"What colour is the {o1}?", f"The {o1} is {c1}."), (f"What colour is the {o2}?", f"The {o2} is {c2}."), (f"Who has the {o1}?", f"{p} has the {o1}.")]),
        (f"{p} is {n1} years old and {q} is {n2} years old.", [(f"How old is {p}?", f"{p} is {n1} years old."), (f"How old is {q}?", f"{q} is {n2} years old.")]),
        (f"{p} lives in {city} and has a {o1}.", [(f"Where does {p} live?", f"{p} lives in {city}."), (f"What does {p} have?", f"{p} has a {o1}.")]),
        (f"{p} gave the {o1} to {q}.", [(f"Who has the {o1} now?", f"{q} has the {o1} now."), (f"Who gave the {o1} away?", f"{p} gave the {o1} away.")]),
        (f"A {o1} costs {n1} and a {o2} costs {n2}.", [(f"What does the {o1} cost?", f"The {o1} costs {n1}."), (f"How much is the {o2}?", f"The {o2} costs {n2}.")]),
    ])
    ask, ans = r.choice(qa)
    return f"{text} {ask}", ans


def repeat(r):
    n = r.choice([1, 1, 2, 3, 4])
    words = [r.choice([invented(r), r.choice(OBJECTS), str(r.randint(0, 9999)), person(r), r.choice(COLOURS)]) for _ in range(n)]
    s = " ".join(words)
    if n == 1 and r.random() < 0.4:
        return r.choice([(f"Say {s} twice.", f"{s} {s}"), (f"Put {s} in quotes.", f"'{s}'"), (f"Write {s} in double quotes.", f'"{s}"')])
    return r.choice([f"Repeat: {s}", f"Say {s}", f"Repeat after me: {s}", f"Write {s}"]), s


def introduce(r):
    """Two turns: something that the user says about themselves, and a question about it."""
    p = person(r)
    c, t, n = r.choice(COLOURS), (r.choice(CITIES) if r.random() < 0.6 else invented(r)), r.randint(5, 99)
    first, reply, ask, ans = r.choice([
        (r.choice([f"My name is {p}.", f"I am {p}.", f"Hi, I am {p}", f"Hello, my name is {p}."]), f"Nice to meet you, {p}.", r.choice(["What is my name?", "Do you remember my name?"]), f"Your name is {p}."),
        (f"I live in {t}.", f"{t} sounds like a nice place.", "Where do I live?", f"You live in {t}."),
        (f"I am {n} years old.", "Good to know.", "How old am I?", f"You are {n} years old."),
        (f"My favourite colour is {c}.", f"{cap(c)} is a nice colour.", "What is my favourite colour?", f"Your favourite colour is {c}."),
        (f"I have a dog called {p}.", f"{p} is a nice name for a dog.", "What is my dog called?", f"Your dog is called {p}."),
    ])
    turns = [("user", first), ("assistant", reply)]
    if r.random() < 0.4:
        turns += pair(r)
    return turns + ([("user", ask), ("assistant", ans)] if r.random() < 0.85 else [])


def request(r):
    it = queries.draw_training(r)
    conds = queries.phrases(r, it)
    return queries.english(r, it, conds), queries.prose_answer(it, conds)


def explain(r):
    it = queries.draw_training(r)
    lang = r.choice(list(queries.LANGUAGES))
    q, name = queries.LANGUAGES[lang](it), queries.LANGUAGE_NAMES[lang]
    if r.random() < 0.2:
        return r.choice([f"Show me an example of {name}.", f"Give me an example of {name}.", f"What does {name} look like?"]), q
    if r.random() < 0.3:
        return r.choice([f"Repeat: {q}", f"Copy this {name}: {q}"]), q
    return r.choice([f"What does this mean? {q}", f"Explain this {name}: {q}", f"What does {q} do?"]), f"It asks for {queries.plain(it)}."


SKILLS = {greet: 2, small: 8, capital: 5, animal: 8, cast: 9, town: 3, job: 4, colour: 4, definition: 9, howto: 6, arithmetic: 14,
          calendar: 5, opposite: 3, weather: 3, listing: 3, unknown: 9, feeling: 2, yes_no: 4, advice: 3, story: 3, reading: 14,
          repeat: 9, request: 16, explain: 14}


def pair(r, leave_out=()):
    """One question and its answer; `leave_out` names skills to skip."""
    while (skill := r.choices(list(SKILLS), list(SKILLS.values()))[0]).__name__ in leave_out:
        pass
    q, ans = skill(r)
    return [("user", q), ("assistant", ans)]


def conversation(r: random.Random, turns=(1, 1, 1, 1, 2, 3)):
    """One conversation, with a system message in a fifth of the cases."""
    out = []
    if r.random() < 0.2:
        out.append(("system", r.choice(SYSTEMS)))
    for _ in range(r.choice(turns)):
        out += introduce(r) if r.random() < 0.05 else pair(r)
    return out
