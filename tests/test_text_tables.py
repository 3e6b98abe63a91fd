from longrm.text_tables import fact_lines, table_lines


def test_names_are_left_and_numbers_right():
    assert table_lines(["length", "%", "n"], [["all", "83.3", "24"], ["1024", "7.0", "120"]], 80) == [
        "length     %    n",
        "all     83.3   24",
        "1024     7.0  120",
    ]


def test_a_long_name_is_wrapped_and_numbers_stay_whole():
    lines = table_lines(["task", "%"], [["several words of a name", "83.3 [70.1, 90.2]"]], 32)
    assert lines == [
        "task                           %",
        "several words  83.3 [70.1, 90.2]",
        "of a name",
    ]


def test_bars_are_drawn_where_there_is_room():
    rows = [["a", "1"], ["b", "2"]]
    assert table_lines(["x", "n"], rows, 40, bars=[0.5, 1.0])[2] == f"b  2  {'█' * 30}"
    assert table_lines(["x", "n"], rows, 10, bars=[0.5, 1.0])[2] == "b  2"


def test_a_fact_without_a_name_continues_the_one_above_and_long_ones_are_wrapped():
    assert fact_lines([("time", "one two three"), ("", "four")], 15) == [
        "time  one two",
        "      three",
        "      four",
    ]
