// A locale that writes numbers as people do: 1.234.567,5.
#pragma once

#include <locale>
#include <string>

namespace horon::test {

// While an object lives, its locale is the global one of the program.
class GroupingLocale {
 public:
  GroupingLocale()
      : before_(std::locale::global(std::locale(std::locale::classic(), new Grouping))) {}
  ~GroupingLocale() { std::locale::global(before_); }
  GroupingLocale(const GroupingLocale&) = delete;
  GroupingLocale& operator=(const GroupingLocale&) = delete;

 private:
  class Grouping final : public std::numpunct<char> {
   protected:
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
    char do_decimal_point() const override { return ','; }
  };

  const std::locale before_;
};

}  // namespace horon::test
