export interface ResultProps {
  /** Name of the file, as in the list of results. */
  name: string;
  isDark: boolean;
}
