"""The words of the demo completions, in several languages. All of it written for this project."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """What the dialogue builders need to speak one language.

    Attributes:
        code: ISO 639-1 code, kept as the record's ``language``.
        name: the language's name in English.
        ask_sum: question about ``{a} {op} {b}``.
        step: one line of reasoning, ``{expr}`` and ``{value}``.
        say_sum: the answer, ``{a} {op} {b}`` and ``{result}``.
        ask_advice: question for advice on ``{topic}``.
        topics: topic -> sentences of advice, combined in random order.
        think_advice: a reasoning sentence about ``{topic}``.
        thanks: follow-up messages of the user that want one more thing.
        phrases: short sentences, index-aligned over the languages, for translation.
        ask_translation: ``{phrase}`` and ``{language}``.
        say_weather: answer with ``{city}``, ``{degrees}``, ``{sky}``.
        ask_weather: question about ``{city}``.
        ask_two: question comparing ``{first}`` and ``{second}``.
    """

    code: str
    name: str
    ask_sum: str
    step: str
    say_sum: str
    ask_advice: str
    topics: dict[str, tuple[str, ...]]
    think_advice: str
    thanks: tuple[str, ...]
    phrases: tuple[str, ...]
    ask_translation: str
    ask_weather: str
    ask_two: str
    say_weather: str


ENGLISH = Language(
    code="en",
    name="English",
    ask_sum="What is {a} {op} {b}? Please show the result only.",
    step="First I work out {expr}, which gives {value}.",
    say_sum="{a} {op} {b} equals **{result}**.",
    ask_advice="I keep having trouble with {topic}. What would you do?",
    topics={
        "keeping bread fresh": (
            "Store the loaf in a paper bag, cut side down on a board.",
            "A fridge dries bread faster than a cupboard does.",
            "Freeze what you will not eat within two days, already sliced.",
            "Five minutes in a warm oven bring a tired crust back to life.",
            "Old crumbs in the bin start mould early, so wipe it once a week.",
        ),
        "watering balcony plants": (
            "Push a finger two knuckles deep into the soil before you water.",
            "Early morning is kinder to leaves than the heat of noon.",
            "Pots of clay need more water than pots of plastic.",
            "A saucer that stays full for an hour means that you gave too much.",
            "In a heat wave, move the smallest pots into the shade first.",
        ),
        "learning to juggle": (
            "Begin with one ball and throw it in the same arc twenty times.",
            "Stand in front of a bed, so that a dropped ball does not roll away.",
            "Look at the top of the arc, never at your hands.",
            "The second ball leaves when the first one is at its highest.",
            "Ten minutes each day beat an hour on Sunday.",
        ),
    },
    think_advice="The question is about {topic}; practical hints help more than theory here.",
    thanks=(
        "Thanks! Anything else I should know?",
        "Good. And if that does not work?",
        "Could you go into more detail?",
    ),
    phrases=(
        "The train leaves at eight.",
        "My sister plays the cello.",
        "The soup is too hot.",
        "We are looking for the library.",
        "It will rain tomorrow.",
    ),
    ask_translation="Translate into {language}: “{phrase}”",
    ask_weather="What is the weather like in {city} right now?",
    ask_two="Is it warmer in {first} or in {second}?",
    say_weather="In {city} it is {degrees} °C with {sky}.",
)

GERMAN = Language(
    code="de",
    name="German",
    ask_sum="Wie viel ist {a} {op} {b}?",
    step="Zuerst rechne ich {expr}, das ergibt {value}.",
    say_sum="{a} {op} {b} ergibt **{result}**.",
    ask_advice="Ich tue mich schwer damit: {topic}. Was rätst du mir?",
    topics={
        "Fahrradschläuche flicken": (
            "Pumpe den Schlauch leicht auf und halte ihn unter Wasser, dann verraten Bläschen das Loch.",
            "Raue die Stelle gut an, sonst hält der Flicken nicht.",
            "Warte fünf Minuten, bis der Kleber matt aussieht.",
            "Prüfe den Mantel von innen mit den Fingern, oft steckt der Splitter noch darin.",
            "Größere Löcher in der Nähe des Ventils lohnen die Mühe selten.",
        ),
        "früh aufstehen": (
            "Lege das Telefon abends außer Reichweite.",
            "Öffne die Vorhänge gleich, denn Licht weckt besser als Lärm.",
            "Gehe jeden Tag zur selben Zeit schlafen, auch am Wochenende.",
            "Ein Glas Wasser neben dem Bett erleichtert den Anfang.",
        ),
    },
    think_advice="Es geht um „{topic}“; ein paar überprüfbare Schritte genügen.",
    thanks=("Danke! Gibt es noch etwas?", "Und wenn das nicht klappt?", "Kannst du das genauer erklären?"),
    phrases=(
        "Der Zug fährt um acht ab.",
        "Meine Schwester spielt Cello.",
        "Die Suppe ist zu heiß.",
        "Wir suchen die Bibliothek.",
        "Morgen wird es regnen.",
    ),
    ask_translation="Übersetze ins {language}: „{phrase}“",
    ask_weather="Wie ist das Wetter gerade in {city}?",
    ask_two="Ist es in {first} oder in {second} wärmer?",
    say_weather="In {city} sind es {degrees} °C bei {sky}.",
)

CHINESE = Language(
    code="zh",
    name="Chinese",
    ask_sum="请问{a} {op} {b}等于多少?",
    step="先计算{expr},得到{value}。",
    say_sum="{a} {op} {b} = **{result}**。",
    ask_advice="我总是做不好{topic},你有什么建议?",
    topics={
        "泡茶": (
            "绿茶用八十度左右的水,沸水会让茶汤发苦。",
            "先用热水温一下杯子,香气会更明显。",
            "第一泡的时间要短,之后每泡再延长十几秒。",
            "茶叶要密封、避光,不要和香料放在一起。",
        ),
        "整理书桌": (
            "先把桌面清空,只放回今天要用的东西。",
            "同类的文具放进同一个盒子,用完立刻归位。",
            "电线用夹子固定在桌边,找起来就不费力了。",
            "每周五花五分钟扔掉不用的纸张。",
        ),
    },
    think_advice="用户问的是{topic},给出几条容易做到的办法就好。",
    thanks=("谢谢!还有别的要注意吗?", "如果还是不行呢?", "能再说得详细一点吗?"),
    phrases=("火车八点出发。", "我姐姐拉大提琴。", "汤太烫了。", "我们在找图书馆。", "明天会下雨。"),
    ask_translation="请翻译成{language}:“{phrase}”",
    ask_weather="{city}现在天气怎么样?",
    ask_two="{first}和{second}哪里更暖和?",
    say_weather="{city}现在{degrees}°C,{sky}。",
)

JAPANESE = Language(
    code="ja",
    name="Japanese",
    ask_sum="{a} {op} {b} はいくつですか。",
    step="まず {expr} を計算すると {value} になります。",
    say_sum="{a} {op} {b} は **{result}** です。",
    ask_advice="{topic}がうまくいきません。どうすればいいですか。",
    topics={
        "ご飯を炊くこと": (
            "お米は冷たい水でさっと二、三回すすぎます。",
            "三十分ほど水に浸すと、芯まで火が通ります。",
            "炊き上がったら十分間ふたを開けずに蒸らします。",
            "しゃもじで底から軽く混ぜ、余分な水分を逃がします。",
        ),
        "傘を長く使うこと": (
            "使ったあとは開いたまま陰干ししてください。",
            "骨の継ぎ目に少し油をさすと錆びにくくなります。",
            "強い風の日は無理に開かないほうが安全です。",
        ),
    },
    think_advice="質問は{topic}について。すぐ試せる手順を並べよう。",
    thanks=("ありがとう。ほかに気をつけることは?", "それでもだめなら?", "もう少し詳しく教えてください。"),
    phrases=(
        "電車は八時に出ます。",
        "姉はチェロを弾きます。",
        "スープが熱すぎます。",
        "図書館を探しています。",
        "明日は雨が降るでしょう。",
    ),
    ask_translation="{language}に訳してください:「{phrase}」",
    ask_weather="いまの{city}の天気を教えてください。",
    ask_two="{first}と{second}では、どちらが暖かいですか。",
    say_weather="{city}は{degrees}°Cで、{sky}です。",
)

ARABIC = Language(
    code="ar",
    name="Arabic",
    ask_sum="كم يساوي {a} {op} {b}؟",
    step="أحسب أولاً {expr} فأحصل على {value}.",
    say_sum="الناتج {a} {op} {b} هو **{result}**.",
    ask_advice="أجد صعوبة في {topic}، فبماذا تنصحني؟",
    topics={
        "تحضير القهوة": (
            "اطحن الحبوب قبل التحضير مباشرة حتى لا تضيع رائحتها.",
            "استعمل ماءً لم يصل إلى الغليان تماماً.",
            "حرّك القهوة ببطء وأبعدها عن النار عند أول رغوة.",
            "اترك الفنجان دقيقة قبل الشرب ليستقر البن في القاع.",
        ),
        "حفظ الأرقام": (
            "قسّم الرقم إلى مجموعات صغيرة من ثلاثة أرقام.",
            "اربط كل مجموعة بصورة تعرفها جيداً.",
            "راجع ما حفظته بعد ساعة ثم بعد يوم.",
        ),
    },
    think_advice="السؤال عن {topic}، وتكفي خطوات قليلة وواضحة.",
    thanks=("شكراً! هل هناك شيء آخر؟", "وإن لم ينجح ذلك؟", "هل يمكنك التوضيح أكثر؟"),
    phrases=(
        "يغادر القطار في الثامنة.",
        "أختي تعزف على التشيلو.",
        "الحساء ساخن جداً.",
        "نبحث عن المكتبة.",
        "ستمطر غداً.",
    ),
    ask_translation="ترجم إلى {language}: «{phrase}»",
    ask_weather="كيف حال الطقس في {city} الآن؟",
    ask_two="أيهما أدفأ، {first} أم {second}؟",
    say_weather="درجة الحرارة في {city} هي {degrees} مئوية مع {sky}.",
)

RUSSIAN = Language(
    code="ru",
    name="Russian",
    ask_sum="Сколько будет {a} {op} {b}?",
    step="Сначала считаю {expr}, получаю {value}.",
    say_sum="{a} {op} {b} равно **{result}**.",
    ask_advice="Мне никак не даётся {topic}. Что посоветуете?",
    topics={
        "выпечка блинов": (
            "Просейте муку и вливайте молоко понемногу, тогда не будет комков.",
            "Дайте тесту постоять полчаса.",
            "Сковорода должна быть очень горячей, а масла нужно совсем чуть-чуть.",
            "Переворачивайте блин, когда края подсохнут и отойдут.",
        ),
        "уход за зимней обувью": (
            "Соль смывайте тёплой водой в тот же вечер.",
            "Сушите ботинки вдали от батареи, набив их бумагой.",
            "Раз в неделю наносите крем тонким слоем.",
        ),
    },
    think_advice="Вопрос про {topic}; лучше дать короткий порядок действий.",
    thanks=("Спасибо! Что ещё важно?", "А если не получится?", "Можно чуть подробнее?"),
    phrases=(
        "Поезд отправляется в восемь.",
        "Моя сестра играет на виолончели.",
        "Суп слишком горячий.",
        "Мы ищем библиотеку.",
        "Завтра будет дождь.",
    ),
    ask_translation="Переведите на {language}: «{phrase}»",
    ask_weather="Какая сейчас погода в городе {city}?",
    ask_two="Где теплее: {first} или {second}?",
    say_weather="В городе {city} {degrees} °C, {sky}.",
)

LANGUAGES: tuple[Language, ...] = (ENGLISH, GERMAN, CHINESE, JAPANESE, ARABIC, RUSSIAN)

CITIES = ("Lisbon", "Kyōto", "Zürich", "القاهرة", "Новосибирск", "成都", "São Paulo", "Reykjavík")

SKIES = ("clear sky ☀️", "light rain 🌦️", "fog 🌫️", "snow ❄️", "thunder ⛈️", "broken clouds ⛅")

SYSTEM_PROMPTS = (
    "You are a patient helper. Answer in the language of the question.",
    "Be brief. Prefer a small example over a long explanation.",
    "You work for a travel office 🧳 and use the tools that you are given.",
)

EMOJI_LINES = ("Great 👍🏽!", "Ha 😂 that was quick.", "👩‍👩‍👧‍👦 says thanks!", "Cafe\u0301 time ☕?", "🇯🇵🇧🇷🇪🇬")

SNIPPETS: tuple[tuple[str, str, str, str], ...] = (
    (
        "python",
        "a function that counts the vowels of a text",
        "Lower-case once, then test each character against a set.",
        (
            'def count_vowels(text: str) -> int:\n    """Return how many characters are vowels."""\n'
            '    return sum(character in "aeiou" for character in text.lower())'
        ),
    ),
    (
        "python",
        "a generator of the running mean of numbers",
        "Keep the sum and the count; yield their quotient after each number.",
        (
            "def running_mean(numbers):\n    total = 0.0\n    for count, number in enumerate(numbers, start=1):\n"
            "        total += number\n        yield total / count"
        ),
    ),
    (
        "javascript",
        "a function that groups words by their first letter",
        "A Map keeps the order of insertion, so the groups come out as they were met.",
        (
            "function byFirstLetter(words) {\n\tconst groups = new Map();\n\tfor (const word of words) {\n"
            "\t\tconst key = word[0] ?? '';\n\t\tgroups.set(key, [...(groups.get(key) ?? []), word]);\n\t}\n\treturn groups;\n}"
        ),
    ),
    (
        "sql",
        "a query for the three customers with the most orders",
        "Group by customer, order by the count, and cut after three rows.",
        "SELECT customer_id, COUNT(*) AS orders\nFROM orders\nGROUP BY customer_id\nORDER BY orders DESC, customer_id\nLIMIT 3;",
    ),
    (
        "rust",
        "a check whether a slice is sorted",
        "Windows of two neighbours are enough; an empty slice has none and is sorted.",
        "fn is_sorted(values: &[i64]) -> bool {\n    values.windows(2).all(|pair| pair[0] <= pair[1])\n}",
    ),
    (
        "html",
        "a list of two links with an accessible name",
        "The list needs a label, which makes it a small navigation region.",
        '<nav aria-label="Pages">\n  <ul>\n    <li><a href="/a">A &amp; B</a></li>\n    <li><a href="/c">C</a></li>\n  </ul>\n</nav>',
    ),
)
